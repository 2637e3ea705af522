from __future__ import annotations

import msgspec
import pytest

from raftlog.http.settings import ServerLimits, ServerSettings, SettingError


@pytest.mark.parametrize(
    "values", [{"body_bytes_max": 0}, {"header_receive_s": 0}, {"connections_max": 10**9}]
)
def test_limit_out_of_bounds_is_refused_however_it_is_given(values: dict[str, float]) -> None:
    (name,) = values
    with pytest.raises(SettingError, match=name):
        ServerLimits(**values)  # type: ignore[arg-type] # counts and seconds alike
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"limits": values}, ServerSettings)


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="body_byte_max"):
        msgspec.convert({"limits": {"body_byte_max": 1}}, ServerSettings)


def test_every_limit_has_bounds() -> None:
    struct = msgspec.inspect.type_info(ServerLimits)
    assert isinstance(struct, msgspec.inspect.StructType)
    for field in struct.fields:
        assert isinstance(field.type, msgspec.inspect.IntType | msgspec.inspect.FloatType)
        assert field.type.ge is not None
        assert field.type.le is not None


@pytest.mark.parametrize(
    ("host", "is_beyond"),
    [
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.7", True),
        ("log-1.example", True),
    ],
)
def test_listening_beyond_loopback_is_known_by_the_address(host: str, is_beyond: bool) -> None:
    assert ServerSettings(host=host).is_beyond_loopback == is_beyond
