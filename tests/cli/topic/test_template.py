import pytest
from raftlog_client import Record

from raftlog.cli.topic.template import json_formatter, template_formatter, text_formatter

RECORD = Record(
    "orders", 3, 17, 1357034400123, 0, b"k\xff", b'{"a":1}', (("h", b"x"), ("empty", None))
)
TOMBSTONE = Record[bytes | None, bytes | None]("orders", 0, 18, 0, 0, None, None)


def test_text_prints_a_line_per_value() -> None:
    text = text_formatter(print_key=False, key_separator=b"\t")
    assert text([RECORD, TOMBSTONE]) == b'{"a":1}\n\n'
    assert text([]) == b""


def test_text_can_print_the_key_too() -> None:
    text = text_formatter(print_key=True, key_separator=b"=")
    assert text([RECORD, TOMBSTONE]) == b'k\xff={"a":1}\n=\n'


def test_json_marks_what_is_not_text() -> None:
    assert json_formatter([RECORD, TOMBSTONE]) == (
        b'{"topic":"orders","partition":3,"offset":17,"timestamp":1357034400123,'
        b'"key":"a/8=","key_encoding":"base64","value":"{\\"a\\":1}",'
        b'"headers":[{"key":"h","value":"x"},{"key":"empty","value":null}]}\n'
        b'{"topic":"orders","partition":0,"offset":18,"timestamp":0,"key":null,"value":null}\n'
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"%v\n", b'{"a":1}\n'),
        ("%v", b'{"a":1}'),
        (r"%t/%p/%o %d\t%d{iso}", b"orders/3/17 1357034400123\t2013-01-01T10:00:00.123Z"),
        ("%k{hex} %k{base64} %K %V", b"6bff a/8= 2 7"),
        ("%H %h", b"2 h=x,empty="),
        (r"%%%{%}\x41\\\0", b"%{}A\\\0"),
        ('%v{"literal"}', b'{"a":1}{"literal"}'),
        ("é%p", "é3".encode()),
    ],
)
def test_template(template: str, expected: bytes) -> None:
    assert template_formatter(template)([RECORD]) == expected


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("%z", "%z is not known"),
        ("%v{octal}", "%v{octal} is not known"),
        (r"\q", r"\\q is not an escape"),
        ("50%", "lone %"),
        ("x\\", r"lone \\"),
    ],
)
def test_bad_template_is_explained(template: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        template_formatter(template)
