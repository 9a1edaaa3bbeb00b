"""The Dockerfile, as far as it can be checked without a builder."""

import json
import re
import shlex

import pytest
from tests.deploy.monitoring import DEPLOY

from rlstm_server.settings import PREFIX, Settings

ROOT = DEPLOY.parent
FILE = DEPLOY / "docker" / "Dockerfile"


def stages():
    """Each stage's base and instructions, by its name; lines that go on are one."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    found, instructions = {}, []
    for line in filter(None, text.split("\n")):
        name, rest = line.split(" ", 1)
        if name == "FROM":
            base, stage = rest.split(" AS ")
            found[stage] = (base, instructions := [])
        elif found:
            instructions.append((name, rest))
        else:
            assert (name, rest.split("=")[0]) == ("ARG", "PYTHON")
    return found


def values(stage, instruction):
    """What an instruction says in a stage and in those it is made from."""
    found = []
    while stage in STAGES:
        base, instructions = STAGES[stage]
        found += [rest for name, rest in instructions if name == instruction]
        stage = base
    return found


STAGES = stages()
TARGETS = ("cpu", "cuda")


def test_the_base_is_one_and_pinned():
    """A patch version of Python that the package takes, which a digest can replace."""
    base = re.search(r"^ARG PYTHON=(.+)$", FILE.read_text(), re.MULTILINE)[1]
    assert re.fullmatch(r"python:3\.1[1-9]\.\d+-slim-[a-z]+", base)
    bases = {base for base, _ in STAGES.values()}
    assert bases <= {"${PYTHON}", *STAGES}


def test_health_is_asked_where_the_server_answers():
    """In exec form, by what the image has, at the port that the server is told."""
    (check,) = values("cpu", "HEALTHCHECK")
    command = json.loads(check.split(" CMD ", 1)[1])
    assert command[:2] == ["python", "-c"]
    assert "/health/ready" in command[2]
    assert "RLSTM_PORT" in command[2]
    compile(command[2], "healthcheck", "exec")


@pytest.mark.parametrize("target", TARGETS)
def test_variables_are_settings(target):
    """Each RLSTM_ variable is a setting, and its value one that the setting takes."""
    pairs = dict(pair.split("=", 1) for line in values(target, "ENV") for pair in shlex.split(line))
    ours = {name.removeprefix(PREFIX).lower(): value for name, value in pairs.items() if PREFIX in name}
    assert set(ours) <= set(Settings.model_fields)
    assert Settings(**ours, api_keys="some-key-or-other").device == target
    assert (ours["host"], ours["port"]) == ("0.0.0.0", "8000")


def test_every_source_is_let_in():
    """What the first stage copies is there, and the ignore file, which lets in nothing else, names it."""
    copied = [word for rest in values("wheel", "COPY") for word in rest.split()[:-1]]
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    assert all((ROOT / path).exists() for path in copied)
    assert next(line for line in ignored if not line.startswith(("#", "!"))) == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)


def test_an_image_has_what_its_device_needs():
    """Torch is in that for a GPU alone: first, within the bounds of pyproject.toml."""
    wanted = re.search(r'"(torch[^"]+)"', (ROOT / "pyproject.toml").read_text())[1]
    installed = {target: " ".join(values(f"packages-{target}", "RUN")) for target in TARGETS}
    extras = {target: re.findall(r"\[([a-z,]+)\]\"", runs) for target, runs in installed.items()}
    assert extras == {"cpu": ["server,otel"], "cuda": ["gpu,otel"]}
    torch = {target: re.findall(r'"(torch[^"]+)"', runs) for target, runs in installed.items()}
    assert torch == {"cpu": [], "cuda": [wanted]}
