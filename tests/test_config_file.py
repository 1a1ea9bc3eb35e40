"""A configuration is taken as a whole or refused with file, line and key."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from swapd import host_checks
from swapd.certify.certificate import VALID_S, write
from swapd.config import Config
from swapd.config_file import load_config, parse_config
from swapd.errors import Code, SwapdError
from tests.certify.made import certificate

GOOD = """database_path = "swapd.db"
socket_dir = "run"
self_certify = true

[[workers]]
worker_id = "a"
cores = [0]
[[workers]]
worker_id = "b"

[[models]]
alias = "smollm2"
path = "model"

[[credentials]]
namespace = "me"
token = "a-secret-of-sufficient-length"
is_operator = true
"""


def parse(text: str) -> Config:
    return parse_config(text, folder=Path("/srv"), name="swapd.toml")


def refusal(text: str) -> SwapdError:
    with pytest.raises(SwapdError) as caught:
        parse(text)
    return caught.value


def test_a_good_file_is_taken_and_its_paths_are_relative_to_it() -> None:
    """H118."""
    config = parse(GOOD)
    assert config.database_path == "/srv/swapd.db"
    assert config.socket_dir == "/srv/run"
    assert config.models[0].path == "/srv/model"
    assert [worker.worker_id for worker in config.workers] == ["a", "b"]
    assert config.host == "127.0.0.1"
    assert config.port == 8080
    assert not config.allow_sim_engine


def test_an_absolute_path_stays() -> None:
    assert parse(GOOD.replace('"run"', '"/run/swapd"')).socket_dir == "/run/swapd"


def test_the_folder_of_parked_sessions_is_relative_to_the_file() -> None:
    config = parse(GOOD.replace("self_certify = true", 'park_bytes = 1048576\npark_dir = "parked"'))
    assert config.park_dir == "/srv/parked"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # unknown keys, anywhere
        ("self_certify", "self_certfy", "line 3: unknown key 'self_certfy'; did you mean 'self_certify'?"),
        ("cores = [0]", "core = [0]", "line 7: unknown key 'core' in [workers[0]]; did you mean 'cores'?"),
        ("self_certify = true", "limits = { prot = 1 }", "line 3: unknown key 'prot' in [limits]"),
        ("self_certify = true", "timers.rpc_z = 1", "line 3: unknown key 'rpc_z' in [timers]; did you mean"),
        (
            "self_certify = true",
            "allow_mock_certificates = true",
            "line 3: allow_mock_certificates = true is refused: evidence of the sim engine proves nothing",
        ),
        (
            "self_certify = true",
            'self_certify = true\ncertificate_path = "C.json"',
            "line 3: self_certify and certificate_path exclude each other",
        ),
        ("self_certify = true", 'certificate_path = ""', "line 3: certificate_path is empty"),
        ("self_certify = true", 'certificate_id = "x"', "line 3: certificate_id has no effect without"),
        (
            "self_certify = true",
            'evidence_profile = "gpu"',
            "line 3: evidence_profile: must be one of 'cuda_release', 'cpu_release', 'dev'",
        ),
        # wrong types
        ("true\n\n", '"yes"\n\n', "line 3: self_certify: expected bool, got str"),
        ("self_certify = true", "port = 80.5", "line 3: port: expected int, got float"),
        ("self_certify = true", "limits = 3", "line 3: limits must be a table"),
        ("cores = [0]", 'cores = [0, "x"]', "line 7: workers[0].cores: expected int, got str"),
        ("cores = [0]", 'engine = "mock"', "line 7: workers[0].engine: must be one of 'vllm', 'sim'"),
        ('alias = "smollm2"\n', "", "line 11: 'alias' is missing in models[0]"),
        ("self_certify = true", "= true", "not valid TOML"),
        # duplicates
        ('"b"', '"a"', "line 9: worker_id 'a' is used twice"),
        # names
        ('"b"', '"B"', "line 9: worker_id must be 1 to 32 characters of a-z, 0-9 and '-'"),
        ('"b"', '""', "line 9: worker_id must be 1 to 32 characters"),
        ('"b"', '"ops"', "line 9: worker_id 'ops' is a name that swapd itself uses"),
        ('"b"', f'"{"b" * 33}"', "line 9: worker_id must be 1 to 32 characters"),
        ('"me"', '"two words"', "line 16: namespace must be"),
        # ranges
        ("self_certify = true", "port = 65536", "line 3: port = 65536 is outside 0 to 65535"),
        ("self_certify = true", "window_tokens = 0", "line 3: window_tokens = 0 is outside 1 to 64"),
        ("self_certify = true", "max_active_sessions = 0", "line 3: max_active_sessions = 0 is outside"),
        ("self_certify = true", "timers.rpc_s = 0", "line 3: rpc_s = 0.0 is outside"),
        ("self_certify = true", "timers.rpc_s = nan", "line 3: rpc_s = nan is outside"),
        (
            "self_certify = true",
            "timers.dead_s = 2.0",
            "line 3: timers must keep heartbeat_s < suspect_s < dead_s",
        ),
        ("self_certify = true", "limits.max_body_bytes = 1", "line 3: max_body_bytes = 1 is outside"),
        ("cores = [0]", "cores = [1, 1]", "line 7: cores must be distinct numbers"),
        (
            "cores = [0]",
            'incarnation = "inc_1"',
            "line 7: incarnation names a worker that is started elsewhere",
        ),
        ("self_certify = true", "worker_restarts = -1", "line 3: worker_restarts = -1 is outside"),
        ("self_certify = true", "max_active_sessions = -4", "line 3: max_active_sessions = -4 is outside"),
        ("self_certify = true", "max_active_sessions = 4.5", "line 3: max_active_sessions: expected int"),
        # parking (B3)
        ("self_certify = true", "park_bytes = 1000", "line 3: park_bytes = 1000 is neither 0 nor at least"),
        ("self_certify = true", "park_bytes = -1", "line 3: park_bytes = -1 is outside"),
        (
            "self_certify = true",
            "park_dir_bytes = 1",
            "line 3: park_dir_bytes has no effect without park_dir",
        ),
        ("self_certify = true", 'park_dir = "p"', "line 3: park_dir has no effect without park_bytes"),
        (
            "self_certify = true",
            'park_bytes = 1048576\npark_dir = ""',
            "line 4: park_dir is empty",
        ),
        (
            "self_certify = true",
            "park_bytes = 1048576\ntransfer_arena = false",
            "line 3: park_bytes needs transfer_arena",
        ),
        ('"b"', '"park"', "line 9: worker_id 'park' is a name that swapd itself uses"),
        # credentials
        ('token = "a-secret-of-sufficient-length"\n', "", "line 15: a credential has either token or"),
        ("is_operator = true", f'token_sha256 = "{"0" * 64}"', "line 15: a credential has either token or"),
        (
            'token = "a-secret-of-sufficient-length"',
            'token_sha256 = "XY"',
            "line 17: token_sha256 must be 64",
        ),
        ("a-secret-of-sufficient-length", "with space", "line 17: a token is printable ASCII"),
        ('path = "model"', 'path = "m"\nweights_digest = "x"', "line 14: weights_digest must be a SHA-256"),
        ('socket_dir = "run"', 'socket_dir = ""', "line 2: socket_dir is empty"),
        ("self_certify = true", 'host = ""', "line 3: host must be an address or a name"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(old: str, new: str, said: str) -> None:
    """H119, H42, H120."""
    assert old in GOOD
    error = refusal(GOOD.replace(old, new, 1))
    assert error.code is Code.CONFIG_INVALID
    assert said in error.sentence
    assert "swapd.toml" in error.sentence
    assert "a-secret" not in error.sentence


def test_the_first_of_several_mistakes_is_named_and_the_rest_counted() -> None:
    error = refusal(GOOD.replace("worker_id", "workerid").replace("self_certify", "selfcertify"))
    assert "line 3: unknown key 'selfcertify'; did you mean 'self_certify'? (and " in error.sentence


def test_one_token_under_two_names_is_refused_also_as_its_digest() -> None:
    """H119, B34: the digest of a token is the same token."""
    import hashlib

    digest = hashlib.sha256(b"a-secret-of-sufficient-length").hexdigest()
    again = f'[[credentials]]\nnamespace = "you"\ntoken_sha256 = "{digest}"\n'
    assert "line 21: this token is used twice" in refusal(GOOD + again).sentence


def test_a_second_model_is_refused_and_so_is_one_alias_twice() -> None:
    """H119."""
    other = '[[models]]\nalias = "other"\npath = "model"\n'
    assert "exactly one model" in refusal(GOOD + other).sentence
    assert "alias 'smollm2' is used twice" in refusal(GOOD + other.replace("other", "smollm2")).sentence


@pytest.mark.parametrize("name", ["workers", "models", "credentials"])
def test_an_empty_list_is_refused(name: str) -> None:
    """H126 for credentials: nobody could call, or everybody."""
    head, *tables = GOOD.split("\n\n")
    rest = "\n\n".join(table for table in tables if f"[[{name}]]" not in table)
    said = refusal(f"{head}\n{name} = []\n\n{rest}").sentence
    assert "swapd.toml line 4: there must be" in said
    assert f"[[{name}]] entry" in said


def test_a_number_of_workers_is_refused_in_words() -> None:
    """H121: there is no server worker count."""
    head, *tables = GOOD.split("\n\n")
    rest = "\n\n".join(table for table in tables if "[[workers]]" not in table)
    assert "a number of processes cannot be set" in refusal(f"{head}\nworkers = 2\n\n{rest}").sentence


def test_the_sim_engine_needs_leave() -> None:
    """H120's sense for this version: made-up output never by accident."""
    text = GOOD.replace("cores = [0]", 'engine = "sim"')
    assert refusal(text).code is Code.ENGINE_REFUSED
    assert parse("allow_sim_engine = true\n" + text).workers[0].engine == "sim"


def test_a_host_beyond_loopback_is_taken_with_credentials_only() -> None:
    """H126."""
    assert parse('host = "0.0.0.0"\n' + GOOD).host == "0.0.0.0"
    without = 'host = "0.0.0.0"\ncredentials = []\n' + GOOD.split("[[credentials]]")[0]
    said = refusal(without).sentence
    assert "line 1: a host other than loopback needs credentials (and 1 more)" in said


def test_an_empty_list_of_end_tokens_is_refused() -> None:
    """H125."""
    text = GOOD.replace('path = "model"', 'path = "model"\neos_token_ids = []')
    assert "line 14: eos_token_ids is empty" in refusal(text).sentence
    assert parse(text.replace("[]", "[2]")).models[0].eos_token_ids == (2,)


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good configuration with a model folder that looks complete, on a host with room to lock."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY,) * 2)
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    path = tmp_path / "swapd.toml"
    path.touch(mode=0o600)
    path.write_text(GOOD.replace('"run"', '"/run/swapd"'))
    return path


def test_loading_warns_of_self_certification_alone(on_disk: Path) -> None:
    """H133's warning at start."""
    config, warnings = load_config(on_disk)
    assert config.database_path == str(on_disk.parent / "swapd.db")
    assert warnings == [host_checks.SELF_CERTIFY_WARNING]


def test_without_evidence_the_service_starts_and_says_that_it_moves_nothing(on_disk: Path) -> None:
    """H124."""
    on_disk.write_text(on_disk.read_text().replace("self_certify = true\n", ""))
    assert load_config(on_disk)[1] == [
        "there is no certificate and self_certify is false: native moves are refused"
    ]


@pytest.mark.parametrize(
    ("left_s", "warned"),
    [(10 * 86_400, None), (3 * 86_400, "expires in 3 days: renew it"), (-60, "native moves are refused")],
)
def test_a_certificate_is_read_at_start_and_its_end_is_warned_of(
    on_disk: Path, left_s: int, warned: str | None
) -> None:
    """H124, H139, A36: found beside the configuration; a start that cannot read it stops."""
    text = on_disk.read_text().replace("self_certify = true", 'certificate_path = "CERTIFICATE.json"')
    on_disk.write_text(text)
    for content in (None, b"", b"no certificate"):
        if content is not None:
            (on_disk.parent / "CERTIFICATE.json").write_bytes(content)
        with pytest.raises(SwapdError) as refused:
            load_config(on_disk)
        assert refused.value.code is Code.CERTIFICATE_UNREADABLE
    made = certificate("fp", issued_at=int(time.time()) + left_s - VALID_S)
    (on_disk.parent / "CERTIFICATE.json").write_bytes(write(made))
    config, warnings = load_config(on_disk)
    assert config.certificate_path == str(on_disk.parent / "CERTIFICATE.json")
    assert len(warnings) == (warned is not None)
    assert warned is None or warnings[0].endswith(warned)


def test_a_certificate_that_allows_nothing_is_warned_of_and_the_start_goes_on(on_disk: Path) -> None:
    """H130, H140: edited, and so worth nothing."""
    text = on_disk.read_text().replace("self_certify = true", 'certificate_path = "CERTIFICATE.json"')
    on_disk.write_text(text)
    made = certificate("fp", issued_at=int(time.time()))
    edited = write(made).replace(str(made.expires_at).encode(), str(made.expires_at + 86_400).encode())
    (on_disk.parent / "CERTIFICATE.json").write_bytes(edited)
    [said] = load_config(on_disk)[1]
    assert said.startswith("the certificate allows no native move: id_mismatch")


def test_the_keys_of_the_rule_are_there_with_their_defaults() -> None:
    """H118, H120, H124: as far as a key has a meaning here; moves need evidence unless somebody says so."""
    config = parse(GOOD.replace("self_certify = true\n", ""))
    assert (config.certificate_path, config.certificate_id, config.evidence_profile) == (
        None,
        None,
        "cuda_release",
    )
    assert (config.self_certify, config.allow_mock_certificates, config.migration_enabled) == (
        False,
        False,
        True,
    )
    assert config.transfer_arena
    named = 'certificate_path = "C.json"\ncertificate_id = "x"\nevidence_profile = "cpu_release"\n'
    taken = parse(named + GOOD.replace("self_certify = true\n", ""))
    assert (taken.certificate_path, taken.certificate_id) == ("/srv/C.json", "x")


def test_no_environment_variable_changes_what_is_loaded(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H117."""
    before = load_config(on_disk)
    for field in Config.__struct_fields__:
        monkeypatch.setenv(f"SWAPD_{field.upper()}", "9")
        monkeypatch.setenv(field.upper(), "9")
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("SWAPD_CONFIG", "/nowhere/else.toml")
    assert load_config(on_disk) == before


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o640, False), (0o604, True), (0o644, True)])
def test_a_file_with_tokens_that_everyone_may_read_is_refused(
    on_disk: Path, mode: int, refused: bool
) -> None:
    """B34."""
    on_disk.chmod(mode)
    if refused:
        with pytest.raises(SwapdError, match="chmod 600") as caught:
            load_config(on_disk)
        assert caught.value.code is Code.CONFIG_INVALID
    else:
        assert any("its group may read it" in each for each in load_config(on_disk)[1]) == (mode == 0o640)


def test_a_file_with_digests_only_may_be_read_by_all(on_disk: Path) -> None:
    """B34: a SHA-256 of a long random token gives nothing away."""
    text = on_disk.read_text()
    on_disk.write_text(
        text.replace('token = "a-secret-of-sufficient-length"', f'token_sha256 = "{"0" * 64}"')
    )
    on_disk.chmod(0o644)
    load_config(on_disk)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_folder_without_a_part_is_refused(on_disk: Path, name: str) -> None:
    (on_disk.parent / "model" / name).unlink()
    with pytest.raises(SwapdError) as caught:
        load_config(on_disk)
    assert caught.value.code is Code.MODEL_MISSING


def test_a_model_folder_that_is_not_there_is_refused(on_disk: Path) -> None:
    on_disk.write_text(on_disk.read_text().replace('"model"', '"elsewhere"'))
    with pytest.raises(SwapdError, match=r"elsewhere is not a folder") as caught:
        load_config(on_disk)
    assert caught.value.code is Code.MODEL_MISSING


def test_another_tokenizer_than_the_one_named_is_refused(on_disk: Path) -> None:
    """H125."""
    on_disk.write_text(on_disk.read_text().replace('"model"', f'"model"\ntokenizer_digest = "{"0" * 64}"'))
    with pytest.raises(SwapdError, match="tokenizer_digest"):
        load_config(on_disk)


def test_a_low_page_lock_limit_is_a_warning(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H91: it costs speed, not service."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (8 << 20, 8 << 20))
    monkeypatch.setattr(host_checks, "_may_lock", lambda: False)
    assert any("RLIMIT_MEMLOCK is 8 MiB" in warning for warning in load_config(on_disk)[1])


def test_the_memory_of_parked_sessions_counts_towards_the_page_lock_limit(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H91, B3: the arena is locked first, so that what the limit does not reach is the park's."""
    text = on_disk.read_text()
    sizes = "arena_bytes = 67108864\npark_bytes = 33554432\n"
    on_disk.write_text(sizes + "\n".join(line for line in text.splitlines() if "arena_bytes" not in line))
    monkeypatch.setattr(host_checks, "_may_lock", lambda: False)

    def warned(limit_mib: int) -> list[str]:
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit_mib << 20, limit_mib << 20))
        return [warning for warning in load_config(on_disk)[1] if "RLIMIT_MEMLOCK" in warning]

    assert warned(96) == []
    (told,) = warned(95)
    assert "arena_bytes and park_bytes are together 96 MiB: the memory of parked sessions" in told
    (told,) = warned(63)
    assert "the arena will not be page-locked" in told


def test_a_socket_folder_with_too_long_a_name_is_refused(on_disk: Path) -> None:
    """H105: said before anything is bound."""
    on_disk.write_text(on_disk.read_text().replace("/run/swapd", "/run/" + "x" * 100))
    with pytest.raises(SwapdError) as caught:
        load_config(on_disk)
    assert caught.value.code is Code.SOCKET_PATH_TOO_LONG


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SwapdError, match="No such file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(SwapdError, match="byte 5 is not UTF-8"):
        load_config(tmp_path / "bad.toml")
    with pytest.raises(SwapdError, match="Is a directory"):
        load_config(tmp_path)


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(SwapdError, match="is over 1048576 bytes"):
        load_config(path)
