"""Benchmarks of what bounds calls, and of what slow calls cost."""
