"""Write the modules of `raftlog/kafka/messages` from Kafka's own message definitions.

    python scripts/generate_kafka_messages.py kafka-clients-4.3.1.jar

The jar holds a JSON definition of each message: fields, versions, defaults. Each family of APIs
becomes a module with their requests and responses, as annotated Structs (`raftlog/schema`). Run it
for another release of Kafka, and read the diff.
"""

from __future__ import annotations

import builtins
import json
import keyword
import re
import subprocess
import sys
import textwrap
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

FAMILIES: Final = {
    "classic": ("JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup"),
    "cluster": (
        "DescribeLogDirs", "ElectLeaders", "AlterPartitionReassignments",
        "ListPartitionReassignments", "DescribeQuorum", "DescribeCluster",
    ),
    "configs": (
        "DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "ListConfigResources",
    ),
    "fetch": ("Fetch",),
    "group_offsets": ("OffsetCommit", "OffsetFetch", "OffsetDelete"),
    "groups": (
        "FindCoordinator", "DescribeGroups", "ListGroups", "DeleteGroups",
        "ConsumerGroupHeartbeat", "ConsumerGroupDescribe",
    ),
    "metadata": ("Metadata", "ApiVersions"),
    "offsets": ("ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch"),
    "produce": ("Produce",),
    "sasl": ("SaslHandshake", "SaslAuthenticate"),
    "topics": ("CreateTopics", "DeleteTopics", "CreatePartitions", "DescribeTopicPartitions"),
    "transactions": (
        "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers",
        "TxnOffsetCommit", "DescribeProducers", "DescribeTransactions", "ListTransactions",
    ),
}  # fmt: skip
"""The APIs that the listener serves, by module. The handlers have modules of the same names."""
LATEST: Final = {"AddPartitionsToTxn": 3}
"""The newest version of an API whose later versions are not for clients."""
TARGET: Final = Path(__file__).resolve().parent.parent / "raftlog" / "kafka" / "messages"
TYPES: Final = {
    "int8": ("Int8", "0"),
    "int16": ("Int16", "0"),
    "uint16": ("Uint16", "0"),
    "int32": ("Int32", "0"),
    "uint32": ("Uint32", "0"),
    "int64": ("Int64", "0"),
    "float64": ("float", "0.0"),
    "bool": ("bool", "False"),
    "string": ("str", '""'),
    "bytes": ("bytes", 'b""'),
    "records": ("Records", 'b""'),
    "uuid": ("OptionalUuid", "None"),
}
"""Of the definitions: the annotation here, and the default."""
LAST: Final = 32_767


def main(jar: str) -> None:
    """Write all modules, formatted."""
    with zipfile.ZipFile(jar) as archive:
        for family, apis in FAMILIES.items():
            messages = {api: pair(archive, api) for api in apis}
            separate(messages)
            text = "".join(message.source() for both in messages.values() for message in both)
            (TARGET / f"{family}.py").write_text(header(apis, text) + text)
    subprocess.run(["ruff", "check", "-q", "--select", "I", "--fix", str(TARGET)], check=True)
    subprocess.run(["ruff", "format", "-q", str(TARGET)], check=True)


def definition(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """A message's definition: JSON with comments on lines of their own."""
    text = archive.read(f"common/message/{name}.json").decode()
    found: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return found


def pair(archive: zipfile.ZipFile, api: str) -> tuple[Message, Message]:
    """Request and response of an API, without a name in common."""
    request, response = (
        Message(definition(archive, f"{api}{kind}"), LATEST.get(api, LAST))
        for kind in ("Request", "Response")
    )
    for name in request.structs.keys() & response.structs.keys():
        request.rename(name, f"Request{name}")
        response.rename(name, f"Response{name}")
    return request, response


def separate(messages: dict[str, tuple[Message, Message]]) -> None:
    """Put the API's name before the name of each struct that several APIs of a module have."""
    uses = Counter(
        name for both in messages.values() for message in both for name in message.structs
    )
    for api, both in messages.items():
        for message in both:
            for name in [name for name in message.structs if uses[name] > 1]:
                if not name.startswith(api):
                    message.rename(name, f"{api}{name}")


def header(apis: tuple[str, ...], text: str) -> str:
    """Docstring and imports."""
    title = "\n".join(textwrap.wrap(f"Messages of {', '.join(apis)}.", 97))
    names = sorted({name for name, _ in TYPES.values() if name[0].isupper()} | {"Field"})
    used = [name for name in (*names, "Versions") if re.search(rf"\b{name}\b", text)]
    lines = [
        f'"""{title}',
        "",
        "scripts/generate_kafka_messages.py wrote this module. Do not edit it.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import " + ("Annotated, " if "Annotated[" in text else "") + "ClassVar",
        "",
        "import msgspec",
        "",
        f"from raftlog.schema.fields import {', '.join(sorted(used))}",
        "",
        "",
    ]
    return "\n".join(lines)


def snake(name: str) -> str:
    """A field's name in Python."""
    text = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text).lower()
    is_taken = keyword.iskeyword(text) or hasattr(builtins, text)
    return f"{text}_" if is_taken else text


def span(text: str | None) -> tuple[int, int] | None:
    """First and last version; None for none."""
    if text is None or text == "none":
        return None
    first, _, last = text.rstrip("+").partition("-")
    return int(first), LAST if text.endswith("+") else int(last or first)


class Message:
    """One message's Structs."""

    def __init__(self, spec: dict[str, Any], latest: int) -> None:
        self._spec = spec
        self._name = spec["name"]
        versions = span(spec["validVersions"])
        assert versions is not None, self._name
        self._versions = versions[0], min(versions[1], latest)
        self.structs: dict[str, list[dict[str, Any]]] = {}
        """Fields by the name of the struct; nested structs come before those that have them."""
        for struct in (*spec.get("commonStructs", []), spec):
            self._collect(struct["name"], struct["fields"])

    def rename(self, old: str, new: str) -> None:
        """Give a nested struct another name: request and response have one of that name."""
        self.structs = {new if name == old else name: it for name, it in self.structs.items()}
        for found in self.structs.values():
            for field in found:
                bare = field["type"].removeprefix("[]")
                if bare == old:
                    field["type"] = field["type"].replace(old, new)

    def _collect(self, name: str, fields: list[dict[str, Any]]) -> None:
        fields = [field for field in fields if self._is_known(field)]
        for field in fields:
            if "fields" in field:
                self._collect(field["type"].removeprefix("[]"), field["fields"])
        self.structs[name] = fields

    def source(self) -> str:
        """The text of the message's classes."""
        first, last = self._versions
        flexible = span(self._spec.get("flexibleVersions"))
        more = "" if flexible is None else f", flexible={flexible[0]}"
        lines = []
        for name, fields in self.structs.items():
            lines += [f"class {name}(msgspec.Struct, frozen=True, gc=False):"]
            if name == self._name:
                lines += [f"    VERSIONS: ClassVar = Versions({first}, {last}{more})"]
            lines += [f"    {self._field(field)}" for field in fields]
            lines += ["", ""]
        return "\n".join(lines)

    def _is_known(self, field: dict[str, Any]) -> bool:
        """Whether any version that is left has the field."""
        versions = span(field.get("versions"))
        first, last = self._versions
        return versions is not None and versions[0] <= last and first <= versions[1]

    def _field(self, field: dict[str, Any]) -> str:
        assert field.get("flexibleVersions") is None, field
        annotation, default = self._type(field)
        versions, tagged = span(field["versions"]), span(field.get("taggedVersions"))
        nullable = span(field.get("nullableVersions"))
        assert versions is not None
        options = []
        first = tagged[0] if tagged is not None else versions[0]
        if first > self._versions[0]:
            options.append(f"since={first}")
        if versions[1] < self._versions[1]:
            options.append(f"until={versions[1]}")
        if tagged is not None:
            options.append(f"tag={field['tag']}")
        if nullable is not None:
            annotation += " | None"
            if nullable[0] > max(first, self._versions[0]):
                options.append(f"nullable_since={nullable[0]}")
        if field.get("ignorable") and (options or tagged is not None):
            options.append("is_ignorable=True")
        if options:
            annotation = f"Annotated[{annotation}, Field({', '.join(options)})]"
        return f"{snake(field['name'])}: {annotation} = {default}"

    def _type(self, field: dict[str, Any]) -> tuple[str, str]:
        name, given = field["type"], field.get("default")
        if name.startswith("[]"):
            element = name[2:]
            element = TYPES[element][0] if element in TYPES else element
            if element == "OptionalUuid":
                element = "Uuid"
            return f"tuple[{element}, ...]", "None" if given == "null" else "()"
        if name not in TYPES:
            return name, "None" if given == "null" else f"{name}()"
        annotation, default = TYPES[name]
        if given == "null":
            default = "None"
        elif given is not None and name == "bool":
            default = str(str(given).lower() == "true")
        elif given is not None and name == "string":
            default = json.dumps(given)
        elif given not in (None, ""):
            number = int(str(given), 0)
            default = f"{number:_}"
        return annotation, default


if __name__ == "__main__":
    main(*sys.argv[1:])
