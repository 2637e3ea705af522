from __future__ import annotations

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from raftlog.http.request import Request, ServerContext
from raftlog.http.routing import Match, Route, Router, WrongMethod
from raftlog.record.errors import LogError


async def handler(_request: Request, _context: ServerContext) -> web.StreamResponse:
    raise NotImplementedError


def route(method: str, path: str) -> Route:
    return Route(method, path, handler, "Test")


@pytest.mark.parametrize(
    "paths",
    [
        ["/topics/{topic}", "/topics/all"],
        ["/topics/all", "/topics/{topic}"],
        ["/a", "/a"],
        ["no-slash"],
    ],
)
def test_table_with_a_contradiction_is_refused(paths: list[str]) -> None:
    with pytest.raises(ValueError):
        Router([route("GET", path) for path in paths])


def test_verbs_after_a_colon_are_paths_of_their_own() -> None:
    plain, verb = route("POST", "/c/{id}/records"), route("POST", "/c/{id}/records:batch")
    router = Router([plain, verb])
    for path, expected in (("/c/1/records", plain), ("/c/1/records%3Abatch", verb)):
        found = router.find("POST", path)
        assert isinstance(found, Match)
        assert found.route is expected


def test_each_method_has_its_own_route_and_parameter_names() -> None:
    get, put = route("GET", "/x/{one}"), route("PUT", "/x/{other}")
    router = Router([get, put])
    found = router.find("PUT", "/x/1")
    assert isinstance(found, Match)
    assert found.path_parameters == {"other": "1"}
    assert router.find("POST", "/x/1") == WrongMethod("GET, HEAD, PUT")


@pytest.mark.parametrize(
    ("path", "is_found"),
    [
        ("/g/1/i/2", True),
        ("/g/1/i/2/", True),
        ("/g/1/i/2//to//end/", True),
        ("/g/1/i/2/to/end", True),
        ("/g/1/i//to/end", False),
        ("/g//i/2", False),
        ("/g/1//i/2", False),
        ("//g/1/i/2", False),
        ("/x/1/", False),
    ],
)
def test_empty_segments_are_ignored_behind_the_last_parameter_of_routes_that_say_so(
    path: str, is_found: bool
) -> None:
    lenient = [
        Route("GET", path, handler, "Test", ignores_empty=True)
        for path in ("/g/{g}/i/{i}", "/g/{g}/i/{i}/to/end")
    ]
    router = Router([*lenient, route("GET", "/x/{x}")])
    if is_found:
        found = router.find("GET", path)
        assert isinstance(found, Match)
        assert found.path_parameters == {"g": "1", "i": "2"}
    else:
        with pytest.raises(LogError):
            router.find("GET", path)


@given(method=st.text(max_size=8), path=st.text(max_size=60))
def test_any_path_has_a_route_or_a_typed_error(method: str, path: str) -> None:
    router = Router([route("GET", "/topics/{topic}"), route("GET", "/v1/x")])
    try:
        found = router.find(method, "/" + path)
    except LogError as error:
        assert error.entry.http_status in (400, 404)
    else:
        assert isinstance(found, Match | WrongMethod)
