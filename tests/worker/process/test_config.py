"""Settings, and the command line that sets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from mlxq_worker import cli
from mlxq_worker.config import WorkerConfig
from mlxq_worker.process.signals import StopSignals


def test_look_ahead_is_half_the_rows_and_at_least_one() -> None:
    assert WorkerConfig(max_rows=16).capacity == 24
    assert WorkerConfig(max_rows=1).capacity == 2
    assert WorkerConfig(max_rows=4, look_ahead=0).capacity == 4


def test_names_differ_and_secrets_do_not_show() -> None:
    config = WorkerConfig(redis_url="redis://u:geheim@host/0")
    assert config.name != WorkerConfig().name
    assert "geheim" not in repr(config)


@pytest.mark.parametrize(
    "fields", [{"queue": "a b"}, {"name": "{x}"}, {"max_rows": 0}, {"lease": 0}, {"nonsense": 1}]
)
def test_wrong_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WorkerConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cache_dir": ""}, "empty name"),
        ({"cache_ssd_only": True}, "--cache-dir"),
        ({"cache_shared": True}, "--cache-dir"),
        ({"cache_dir_bits": 8}, "--cache-dir"),
    ],
)
def test_settings_of_a_folder_need_one(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        WorkerConfig(**fields)


class FakeWorker:
    """Takes the place of the worker and notes its settings."""

    configs: list[WorkerConfig]

    def __init__(self, config: WorkerConfig, signals: StopSignals) -> None:
        self.configs.append(config)

    def run(self) -> None:
        pass


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[WorkerConfig]:
    seen: list[WorkerConfig] = []
    monkeypatch.setattr(FakeWorker, "configs", seen, raising=False)
    monkeypatch.setattr(cli, "Worker", FakeWorker)
    monkeypatch.setattr(cli, "set_up", lambda *_: None)
    return seen


def test_options_and_variables_set_everything(configs: list[WorkerConfig], tmp_path: Path) -> None:
    roots = [str(tmp_path), str(tmp_path.parent)]
    arguments = ["--max-rows", "3", "--media-root", roots[0], "--media-root", roots[1], "--no-http"]
    variables = {"MLXQ_QUEUE": "q", "MLXQ_MODEL": "noop:", "MLXQ_LEASE": "7.5", "MLXQ_BURST": "1"}
    result = CliRunner().invoke(cli.app, arguments, env=variables)
    assert result.exit_code == 0, result.output
    [config] = configs
    assert (config.max_rows, config.queue, config.model) == (3, "q", "noop:")
    assert [str(root) for root in config.media_roots] == roots
    assert (config.allow_http, config.lease, config.burst) == (False, 7.5, True)


@pytest.mark.parametrize(
    ("arguments", "variables", "trusted"),
    [
        ([], {}, False),
        (["--trust-remote-code"], {}, True),
        ([], {"MLXQ_TRUST_REMOTE_CODE": "1"}, True),
        ([], {"MLXQ_TRUST_REMOTE_CODE": "0"}, False),
    ],
)
def test_a_models_python_is_trusted_if_that_is_said(
    configs: list[WorkerConfig], arguments: list[str], variables: dict[str, str], trusted: bool
) -> None:
    result = CliRunner().invoke(cli.app, arguments, env=variables)
    assert result.exit_code == 0, result.output
    assert [config.trust_remote_code for config in configs] == [trusted]


def test_every_setting_has_an_option() -> None:
    text = CliRunner().invoke(cli.app, ["--help"], terminal_width=500).output
    special = {"media_roots": "media-root", "allow_http": "no-http", "log_format": "log-json"}
    for name in WorkerConfig.model_fields:
        assert f"--{special.get(name, name.replace('_', '-'))}" in text


@pytest.mark.usefixtures("configs")
@pytest.mark.parametrize(
    "arguments",
    [["--max-rows", "0"], ["--queue", "a b"], ["--max-rows", "x"], ["--media-root", "/no/such"]],
)
def test_wrong_settings_exit_with_two(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_no_server_exits_with_four() -> None:
    url = "redis://u:geheim@127.0.0.1:1/0"
    result = CliRunner().invoke(cli.app, ["--redis-url", url, "--model", "noop:"])
    assert result.exit_code == 4
    assert "error[queue_unavailable]" in result.output
    assert "geheim" not in result.output
