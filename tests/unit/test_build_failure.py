"""What the output of a failed step means. Each text is as the tools print it; each has a near miss beside it."""

from __future__ import annotations

import pytest

from envforge.build_failure import classify, short_download

PIP_SHORT = """
Downloading torch-2.1.0%2Bcu118-cp311-cp311-linux_x86_64.whl (2325.9 MB)
     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸ 2.1/2.3 GB 1.2 MB/s eta 0:02:10
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.
        Expected sha256 bcb17e2de1e2c1b5e5a3
             Got        f1a1a5030a0a0a0a0a0a
"""
PIP_FULL = PIP_SHORT.replace("2.1/2.3 GB", "2.3/2.3 GB")


def test_a_truncated_download_is_no_tampering() -> None:
    """Report BC-05: 2.1 of 2.3 GB arrived, and pip spoke of tampering."""
    cause = classify(PIP_SHORT)
    assert cause is not None and cause.reference == "incomplete-download"
    assert "2.1 GB of 2.3 GB" in cause.message and "Hash checking stays on" in cause.hint


def test_a_whole_file_with_a_wrong_hash_is_a_mismatch() -> None:
    cause = classify(PIP_FULL)
    assert cause is not None and cause.reference == "hash-mismatch"
    assert "bcb17e2de1e2c1b5" in cause.message and "f1a1a5030a0a0a0a" in cause.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IncompleteRead(100 bytes read, 900 more expected)", ("100 bytes", "1000 bytes")),
        ("IncompleteRead(100 bytes read, 900 bytes expected)", ("100 bytes", "900 bytes")),
        ("connection closed: received 5 bytes, expected 10", ("5 bytes", "10 bytes")),
        ("error decoding response body: end of file before message length reached", ("fewer bytes", "those announced")),
        ("received 10 bytes, expected 10", None),
        ("Downloading 2.3/2.3 GB done", None),
    ],
)
def test_short_downloads(text: str, expected: tuple[str, str] | None) -> None:
    assert short_download(text) == expected


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("W: GPG error: https://x InRelease: NO_PUBKEY A4B469963BF863CC", "apt-key-rotation"),
        ("  cause: Bad CRC (got d3d9f1e4, expected 3efddf9e) for file: tiny.py", "damaged-download"),
        ("E: Conflicting values set for option Signed-By regarding source x", "apt-key-rotation"),
        ("write /usr/lib/x: no space left on device", "disk-full"),
        ("error: HTTP status server error (502 Bad Gateway) for url (u)", "index-error"),
        ("ERROR: HTTP error 503 while getting u", "index-error"),
        ("error: HTTP status client error (403 Forbidden) for url (u)", "index-refused"),
        ("Caused by: invalid peer certificate: UnknownIssuer", "index-certificate"),
        ("error: dns error: failed to lookup address information", "index-unreachable"),
        ("Err:1 http://mirror Temporary failure resolving 'mirror'", "index-unreachable"),
        (
            "  × Failed to download `six`\n  ╰─▶ Hash mismatch for `six==1.17.0`\n\n  Expected:\n    sha256:"
            + "0" * 64,
            "hash-mismatch",
        ),
    ],
)
def test_known_causes(text: str, reference: str) -> None:
    cause = classify(["some line", *text.splitlines(), "another"])
    assert cause is not None and cause.reference == reference
    assert cause.message and cause.hint


@pytest.mark.parametrize(
    "text",
    [
        "error: command 'gcc' failed: No such file or directory",
        "exit code: 1",
        "5024 packages",
        "downloaded 403 files",
        "",
    ],
)
def test_other_failures_are_not_guessed(text: str) -> None:
    assert classify(text, "exit code: 1") is None


def test_a_full_disk_wins_over_what_it_causes() -> None:
    cause = classify(PIP_FULL + "\nOSError: [Errno 28] No space left on device")
    assert cause is not None and cause.reference == "disk-full"
