"""Contract of `pillarbox pack`: one zip that runs, its settings, and errors in words."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from pillarbox.pack import pack

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = f"3.{sys.version_info[1] + 1}"
VERSION = metadata.version("pillarbox")


def names_in(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return set(opened.namelist())


@pytest.mark.contract
def test_the_pack_holds_all_that_runs_and_nothing_that_only_builds(tmp_path: Path) -> None:
    made = pack(tmp_path)
    names = names_in(made.path)
    assert {"pillarbox/__init__.py", "pillarbox/spark/worker.py", "pillarbox/kernel/__init__.py"} <= names
    assert f"pillarbox-{VERSION}.dist-info/METADATA" in names
    assert any(re.fullmatch(r"pillarbox/kernel/mailbox\..*\.so", name) for name in names)
    assert [name for name in names if name.endswith((".pyc", ".pyx", ".pxd", ".h"))] == []
    assert made.packed == (f"pillarbox {VERSION}",)
    assert made.python == HERE


@pytest.mark.contract
def test_the_unpacked_zip_runs_and_knows_its_version_without_the_checkout(tmp_path: Path) -> None:
    with zipfile.ZipFile(pack(tmp_path).path) as archive:
        archive.extractall(tmp_path / "there")
    script = (
        "import pillarbox; from importlib import metadata\n"
        "print(pillarbox.__file__, metadata.version('pillarbox'), list(pillarbox.async_map([-1, 2], abs)))"
    )
    # Without the packages of this environment, and of the user.
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv[1])\n" + script]
    done = subprocess.run([*command, str(tmp_path / "there")], capture_output=True, text=True, timeout=60)
    assert done.stdout.split(" ", 2) == [
        str(tmp_path / "there" / "pillarbox" / "__init__.py"),
        VERSION,
        "[1, 2]\n",
    ], done.stderr


@pytest.mark.contract
def test_equal_contents_make_equal_files_and_the_settings_name_them(tmp_path: Path) -> None:
    first, second = pack(tmp_path / "a.zip"), pack(tmp_path / "b.zip")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.settings == {
        "spark.archives": f"{tmp_path / 'a.zip'}#pillarbox-pack",
        "spark.executorEnv.PYTHONPATH": "pillarbox-pack",
    }
    assert pack(tmp_path / "a b.zip").settings["spark.archives"].endswith("/a%20b.zip#pillarbox-pack")


def test_what_is_included_comes_with_what_it_requires_and_without_spark(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("pyspark")
    made = pack(tmp_path / "http.zip", include=["http"])
    assert {"pillarbox", "aiohttp", "yarl", "multidict"} <= {each.split(" ")[0] for each in made.packed}
    names = names_in(made.path)
    assert "aiohttp/__init__.py" in names
    assert not any(name.startswith(("pyspark/", "py4j/")) for name in names)
    by_module = pack(tmp_path / "dateutil.zip", include=["dateutil"])
    assert any(each.startswith("python-dateutil ") for each in by_module.packed)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include": ["no-such-package"]}, "neither installed here nor one of the extras of Pillarbox"),
        ({"include": ["../x"]}, "must be an extra of Pillarbox"),
        ({"python": "3"}, "must be a minor version of Python"),
        ({"platform": "Linux"}, "must be the tag of a platform"),
        ({"path": "/tmp/a#b.zip"}, "allows neither '#' nor ','"),
        ({"path": "/tmp/pillarbox.tar"}, "must end with .zip"),
    ],
    ids=["include", "path as a name", "python", "platform", "mark", "suffix"],
)
def test_what_cannot_be_packed_is_refused_in_words(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        pack(**options)  # type: ignore[arg-type]


def wheel(folder: Path, python: str, platform: str) -> None:
    """A wheel of Pillarbox, as far as pip looks."""
    tag = f"cp{python.replace('.', '')}"
    with zipfile.ZipFile(folder / f"pillarbox-{VERSION}-{tag}-{tag}-{platform}.whl", "w") as archive:
        info = f"pillarbox-{VERSION}.dist-info"
        files = {
            "pillarbox/__init__.py": "",
            f"pillarbox/kernel/mailbox.cpython-{tag[2:]}-x86_64-linux-gnu.so": "GLIBC_2.17 GLIBC_2.28",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: pillarbox\nVersion: {VERSION}\n",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-{platform}\n",
        }
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))


@pytest.mark.contract
def test_another_python_and_platform_get_a_wheel_of_theirs_or_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip")
    # Only the folder is asked.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", OTHER, "manylinux_2_17_x86_64")
    made = pack(
        *[tmp_path], python=OTHER, platform="manylinux_2_28_x86_64", find_links=str(tmp_path / "wheels")
    )
    assert (made.python, made.platform, made.glibc) == (OTHER, "manylinux_2_28_x86_64", "2.28")
    assert f"pillarbox/kernel/mailbox.cpython-3{OTHER[2:]}-x86_64-linux-gnu.so" in names_in(made.path)
    with pytest.raises(RuntimeError, match="there is no wheel of pillarbox .* on manylinux_2_28_aarch64"):
        pack(python=OTHER, platform="manylinux_2_28_aarch64", find_links=tmp_path / "wheels")


@pytest.mark.contract
def test_the_command_prints_the_settings_and_warns_of_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", OTHER, "manylinux_2_28_x86_64")
    command = [sys.executable, "-m", "pillarbox", "pack", "--output", str(tmp_path / "p.zip")]
    other = [
        "--python",
        OTHER,
        "--platform",
        "manylinux_2_28_x86_64",
        "--find-links",
        str(tmp_path / "wheels"),
    ]
    same = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert same.returncode == 0, same.stderr
    assert f"spark-submit --conf {f'spark.archives={tmp_path}/p.zip#pillarbox-pack'!r}" in same.stdout
    assert "WARNING" not in same.stdout
    warned = subprocess.run([*command, *other], capture_output=True, text=True, timeout=120)
    assert f"start the driver with Python {OTHER}" in warned.stdout, warned.stderr
    refused = subprocess.run([*command, "--include", "absent-x"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert refused.stderr.startswith("pillarbox pack: include='absent-x'")
