"""Settings, and the command line that sets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.main import get_command
from typer.testing import CliRunner

from mlxq_producer.cli.app import app as producer_app
from mlxq_schemas.environment import KNOWN
from mlxq_worker import cli
from mlxq_worker.cache.cli import app as cache_app
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
    ("arguments", "said"),
    [
        (["--max-rows", "0"], "--max-rows 0: must be at least 1"),
        (["--max-rows", "x"], "--max-rows x: must be a whole number"),
        (["--queue", "a b"], "--queue: queue 'a b' is not a name"),
        (["--media-root", "/no/such"], "--media-root: /no/such is not a folder"),
        (["--cache-dir-bits", "5", "--cache-dir", "x"], "--cache-dir-bits 5: must be 8"),
        (["--kv-bits", "5"], "--kv-bits 5: must be 2, 3, 4, 6 or 8"),
        (["--cache-dir-bytes", "0"], "--cache-dir-bytes 0: must be at least 1"),
        (["--cache-dir-bytes", "20GX"], "--cache-dir-bytes 20GX: must be a size"),
        (["--lease", "1x"], "--lease 1x: must be a duration"),
        (["--cache-ssd-only"], "--cache-ssd-only needs a folder: give --cache-dir too"),
        (["--device", "tpu"], "--device tpu: must be auto, cpu or gpu"),
        (["--max-row", "3"], "--max-row is unknown: did you mean --max-rows?"),
        (["--max-rows"], "--max-rows needs a value"),
        (["extra"], "unexpected: extra"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_with_two(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error[config]: {said}")
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("configs")
def test_a_variables_mistake_has_the_variables_name() -> None:
    result = CliRunner().invoke(cli.app, [], env={"MLXQ_MAX_ROWS": "x"})
    assert result.stderr == "error[config]: MLXQ_MAX_ROWS x: must be a whole number\n"
    assert result.exit_code == 2


def test_units_and_any_case(configs: list[WorkerConfig], tmp_path: Path) -> None:
    arguments = ["--cache-dir", str(tmp_path), "--cache-dir-bytes", "20GiB", "--device", "CPU"]
    arguments += ["--lease", "2m", "--result-ttl", "2h", "--max-media-bytes", "500MB", "-q", "x"]
    result = CliRunner().invoke(cli.app, arguments, env={"MLXQ_PREFIX_CACHE_BYTES": "1.5G"})
    assert result.exit_code == 0, result.output
    [config] = configs
    assert (config.cache_dir_bytes, config.max_media_bytes) == (20 << 30, 500_000_000)
    assert (config.prefix_cache_bytes, config.device, config.queue) == (1_500_000_000, "cpu", "x")
    assert (config.lease, config.result_ttl) == (120, 7200)


def test_a_misspelt_variable_is_named_once(configs: list[WorkerConfig]) -> None:
    environment = {"MLXQ_MAX_ROW": "3", "MLXQ_COLOUR": "red", "MLXQ_TEST_SHORT": "1"}
    result = CliRunner().invoke(cli.app, [], env=environment)
    assert result.stderr.splitlines() == [
        "warning: MLXQ_COLOUR is unknown: sets nothing",
        "warning: MLXQ_MAX_ROW is unknown: did you mean MLXQ_MAX_ROWS?",
    ]
    assert [config.max_rows for config in configs] == [16]


def test_every_variable_that_an_option_reads_is_known() -> None:
    found = {one.envvar for *_, command in commands() for one in command.params if one.envvar}
    assert len(found) > 30
    assert found <= KNOWN


def commands() -> list[tuple[Any, list[str], Any]]:
    """Every command of the three command lines: the app, the words that lead to it, itself."""
    apps = (cli.app, cache_app, producer_app)
    found: list[tuple[Any, list[str], Any]] = [(app, [], get_command(app)) for app in apps]
    for app, words, one in found:
        found += [(app, [*words, n], c) for n, c in getattr(one, "commands", {}).items()]
    # The worker's commands explain themselves.
    return [one for one in found if one[:2] not in [(producer_app, [n]) for n in PASSED_ON]]


PASSED_ON = ("worker", "cache")


@pytest.mark.parametrize(("app", "words"), [one[:2] for one in commands()])
def test_help_names_no_types_and_fits_80_columns(app: Any, words: list[str]) -> None:
    narrow = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    result = CliRunner().invoke(app, [*words, "--help"], env=narrow, terminal_width=80)
    assert result.exit_code == 0
    assert not re.search(r"<(bool|str|int|float|path|list)|\bPath\b|\|>", result.output)
    assert max(map(len, result.output.splitlines())) <= 80


def test_no_server_exits_with_four() -> None:
    url = "redis://u:geheim@127.0.0.1:1/0"
    result = CliRunner().invoke(cli.app, ["--redis-url", url, "--model", "noop:"])
    assert result.exit_code == 4
    assert "error[queue_unavailable]" in result.output
    assert "geheim" not in result.output
