"""Sources for what people have: files, Kafka, Redis Streams, and a generator.

Each is imported where it is used, so that none needs the client of another.
"""
