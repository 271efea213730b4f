"""What verify tells: failures first, causes before consequences, each with a cure; a fixed start is no failure."""

import pytest
import torch
from torch import nn

from lengthwise.conformance import CHECKS, assert_conforms, verify
from lengthwise.conformance.cures import CONSEQUENCES, CURES, explaining_failures
from lengthwise.encoding.alibi import Alibi
from lengthwise.encoding.base import Encoding, cos_sin_from_frequency
from tests.conformance.mutants import NumpyDraws, OwnGenerator, RunawayPower, SlopesInABuffer
from tests.run.test_cli_runs import cli


class LearnedFrequencies(Encoding):
    """Rotary whose frequencies are learned and start at RoPE's: the same start for every seed, and not constant."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self.log_F = nn.Parameter(torch.empty(geometry.head_width // 2))

    def initialize(self, stream):
        pairs = len(self.log_F)
        with torch.no_grad():
            self.log_F.copy_(-torch.arange(pairs) / pairs * 9.21)

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        frequency_F = self.log_F.double().exp()
        return cos_sin_from_frequency(query_positions_BQ, frequency_F), cos_sin_from_frequency(
            key_positions_BK, frequency_F
        )

    def rotate(self, q_BHQE, k_BHKE, state):
        def turn(x, table):
            cos, sin = (part[:, None].to(x.dtype) for part in table)
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        return turn(q_BHQE, state[0]), turn(k_BHKE, state[1])


class LearnedSlopes(Alibi):
    """ALiBi's slopes as parameters: a geometric start that no seed changes."""

    formula = None

    def __init__(self, geometry):
        super().__init__(geometry)
        self.own_H = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream):
        heads = len(self.own_H)
        with torch.no_grad():
            self.own_H.copy_(2.0 ** -(8 * torch.arange(1, heads + 1) / heads))

    def columns(self, positions_BT):
        return None

    def by_distance(self, distances_N):
        return -self.own_H.to(distances_N.dtype)[:, None] * distances_N.abs()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [LearnedFrequencies, LearnedSlopes])
def test_a_fixed_start_that_is_not_constant_conforms(encoding):
    report = verify(encoding, only=["S03", "S04"])
    assert not report.failed and not report.warned, str(report)


@pytest.mark.slow
def test_both_conform_to_every_check():
    assert_conforms(LearnedFrequencies)


@pytest.mark.parametrize("encoding", [OwnGenerator, NumpyDraws])
def test_draws_outside_the_stream_are_caught(encoding):
    (failed,) = verify(encoding, only=["S03"]).failed
    assert "initialize draws with" in failed.detail


@pytest.mark.slow
def test_training_is_looked_at_and_drift_only_warns():
    (failed,) = verify(RunawayPower, only=["S04"]).failed
    assert "after 50 steps at a learning rate of 0.002" in failed.detail and "p_H" in failed.detail

    class Drifting(RunawayPower):
        def initialize(self, stream):
            torch.nn.init.constant_(self.p_H, 0.3)

    report = verify(Drifting, only=["S04"])
    assert not report.failed and report.passed
    (warned,) = report.warned
    assert "for ten times as many steps" in warned.detail and warned.cure == CURES["S04"]


def test_every_check_has_a_cure_and_every_cause_is_a_check():
    ids = {check.id for check in CHECKS}
    assert set(CURES) == ids
    assert set(CONSEQUENCES) <= ids and {id for listed in CONSEQUENCES.values() for id in listed} <= ids


@pytest.mark.slow
def test_causes_come_before_consequences():
    assert explaining_failures({"S01", "S02", "T13"}) == {"S02": "S01", "T13": "S01"}
    assert explaining_failures({"T13"}) == {}
    assert explaining_failures({"T05", "T08", "T29"}) == {"T08": "T05", "T29": "T05"}  # positions counted, not read
    first, *rest = verify(SlopesInABuffer, only=["T13", "S02", "S01"]).failed
    assert first.id == "S01" and not first.because, "the buffer is the cause"
    assert rest and all(result.because == "S01" for result in rest)
    with pytest.raises(AssertionError, match="Compute constants in the hook"):
        assert_conforms(SlopesInABuffer)


@pytest.mark.slow
def test_the_terminal_shows_failures_first_and_everything_only_if_asked(tmp_path):
    (tmp_path / "bad.py").write_text(
        "import torch\n\nfrom lengthwise.encoding.alibi import Alibi\n\n\n"
        "class Bad(Alibi):\n"
        "    def __init__(self, geometry):\n"
        "        super().__init__(geometry)\n"
        '        self.register_buffer("kept", torch.ones(geometry.heads), persistent=False)\n'
    )
    told = cli("verify", "bad.py:Bad", cwd=tmp_path)
    assert told.returncode == 1
    lines = told.stdout.splitlines()
    assert lines[0].startswith("S01 fail") and "found: buffer kept" in lines[1] and lines[2].startswith("  mend:")
    assert "T05" not in told.stdout and "--all shows every check" in lines[-1]
    every = cli("verify", "bad.py:Bad", "--all", cwd=tmp_path).stdout
    assert every.index("S01 fail") < every.index("T05") and "does NOT conform" in every
