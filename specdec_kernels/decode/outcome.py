# SPDX-License-Identifier: Apache-2.0
"""The outcome of a step, as read back to the host."""

from dataclasses import dataclass, field

from ..registry import STATUS_INVALID_ROW
from .step_times import StepTimes
from .transfers import Readback

__all__ = ["Outcome"]

_INVALID = "step: the target's row for the next token must be a distribution, got NaN, +inf or nothing finite"


@dataclass(frozen=True)
class Outcome:
    """Results of one step, with one row or number per request."""

    drafted: list[int]  # number of draft tokens
    accepted: list[int]  # number of accepted ones
    draft_seconds: float  # of the whole batch
    target_seconds: float  # scoring and verifying
    path: list[list[int]] | None = None  # verify_tree's accepted nodes; None for chains
    emitted: list[list[int]] = field(default_factory=list)  # tokens
    tested: list[int] = field(default_factory=list)  # number of tested levels (Proposal.tested)
    status: list[int] = field(default_factory=list)
    # True if the target's row after the accepted drafts was invalid, so no token follows them. Invalid rows of the
    # draft do not count: their drafts are rejected, and a token is drawn from the target's row.
    invalid: list[bool] = field(default_factory=list)

    @property
    def errors(self) -> list[str | None]:
        """For each request: why the step could draw no further token, or None; `error` of Sequence.extend."""
        return [_INVALID if invalid else None for invalid in self.invalid]

    def counts(self, i: int, emitted: int) -> tuple[int, int, int, int]:
        """Return drafted, tested, accepted and status of request i, whose text took `emitted` of the step's tokens.

        If the text ended inside the draft, the rest of the draft does not count as tested or accepted.
        """
        tested, accepted = self.tested[i], self.accepted[i]
        if emitted < len(self.emitted[i]):
            tested = accepted = emitted
        return self.drafted[i], tested, accepted, self.status[i]

    @classmethod
    def read(cls, proposal, verified, readback: Readback, times: StepTimes) -> "Outcome":
        """Read the step's results and all pending read-backs in one transfer.

        It is the step's only synchronisation, unless masks or the drafter had to read drafts before.

        times: marked before and after drafting, scoring and verifying.
        """
        last = verified.logprobs.gather(1, verified.num_accepted[:, None].long())[:, 0]
        results = dict(
            drafted=(proposal.tokens >= 0).sum(1),
            accepted=verified.num_accepted,
            emitted=verified.tokens,
            tested=proposal.tested(verified),
            status=verified.status,
            invalid=last.isnan(),
        )
        if hasattr(verified, "path"):
            results["path"] = verified.path
        asked = {name: readback.ask(values) for name, values in results.items()}
        known = {name: reading.rows for name, reading in asked.items()}
        flagged = [bool(status & STATUS_INVALID_ROW) for status in known["status"]]
        known["invalid"] = [bool(nan) and flag for nan, flag in zip(known["invalid"], flagged)]
        ends = [a + 1 - bad for a, bad in zip(known["accepted"], known["invalid"])]
        known["emitted"] = [row[:end] for row, end in zip(known["emitted"], ends)]
        drafting, scoring, verifying = times.seconds()
        return cls(draft_seconds=drafting, target_seconds=scoring + verifying, **known)
