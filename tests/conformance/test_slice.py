"""A slice of the conformance run that changes with the date, and all that ever failed. ``make conformance`` runs everything."""

import datetime
import pathlib
import random

import pytest

from conformance.__main__ import Worker
from conformance.exceptions import unexplained

FAILED = pathlib.Path(__file__).with_name("failed.txt")
ENTRIES = 12
DTYPES = ["float32", "int64", "complex64"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    found = Worker(tmp_path_factory.mktemp("conformance"))
    yield found
    found.stop()


def check(worker, names, dtypes):
    bad = []
    for name in names:
        answer = worker.ask({"entry": name, "dtypes": dtypes, "limit": 1, "seconds": 30}, 90)
        bad += unexplained({"entry": name, **answer})
    assert not bad, "\n".join(map(str, bad))


def test_slice_of_the_day(worker):
    from conformance.entries import entries

    day = datetime.datetime.now(datetime.UTC).date().toordinal()
    check(worker, [entry.key for entry in random.Random(day).sample(entries(), ENTRIES)], DTYPES)


def test_what_ever_failed(worker):
    check(worker, FAILED.read_text().split(), ["float32", "int64", "uint8"])
