"""What became of one test method: a list of events, which two runs must have in common."""

from __future__ import annotations

import os
import re
import sys
import unittest
from typing import Any

#: What differs from process to process in a message.
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x..."),
    (re.compile(r"@test_\d+_tmp"), "@test_tmp"),
    (re.compile(r"/tmp/\S+"), "/tmp/..."),
    (re.compile(r"\b\d{9,}\b"), "..."),  # id() and hash()
)
_EXAMPLE = re.compile(r"Failed example:\n(.*?)\n(?:Expected|Exception raised|Got)", re.DOTALL)
_MAX_LENGTH = 600


class Events(unittest.TestResult):
    """Collects what a test reports. Mutable. events: kind and text of each, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def addSuccess(self, test: Any) -> None:
        self.events.append("pass")

    def addSkip(self, test: Any, reason: str) -> None:
        self.events.append(f"skip: {plain(reason)}")

    def addError(self, test: Any, err: Any) -> None:
        self.events.append(f"error: {described(err[1])}")

    def addFailure(self, test: Any, err: Any) -> None:
        self.events.append(f"fail: {described(err[1])}")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.events.append("expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.events.append("unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.events.append(f"subtest {subtest._subDescription()}: {described(err[1])}")


def described(error: BaseException) -> str:
    """Returns type and message of an exception; of a doctest's, which examples failed and how."""
    try:
        message = str(error)
    except Exception as inner:  # a test's own exception whose __str__ raises
        message = f"<{type(inner).__name__} in __str__>"
    if message.startswith("Failed doctest test"):
        blocks = message.split("-" * 70)[1:]
        examples = [
            (match[1].split(), block.split())
            for block in blocks
            if (match := _EXAMPLE.search(block))
        ]
        return plain(
            "doctest: "
            + "; ".join(f"{' '.join(said)}, {' '.join(full[-12:])}" for said, full in examples)
        )
    return plain(f"{type(error).__name__}: {message}")


def plain(text: str) -> str:
    """Returns a message without addresses and other things that no two processes share."""
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text[:_MAX_LENGTH]


def run_case(case: unittest.TestCase) -> list[str]:
    """Runs one test method with the fixtures of its class and module."""
    result = Events()
    sys.stdout.flush()
    unittest.TestSuite([case]).run(result)
    return result.events


def silence() -> None:
    """Sends what tests print to nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
