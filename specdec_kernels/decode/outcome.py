# SPDX-License-Identifier: Apache-2.0
"""What became of a step, as the host knows it."""

from dataclasses import dataclass, field

from .step_times import StepTimes
from .transfers import Readback

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """A row or a number for each request."""

    drafted: list[int]  # tokens
    accepted: list[int]
    draft_seconds: float  # of the whole batch
    target_seconds: float  # scoring and verifying
    path: list[list[int]] | None = None  # of verify_tree
    emitted: list[list[int]] = field(default_factory=list)
    tested: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, proposal, verified, readback: Readback, times: StepTimes) -> "Outcome":
        """With all else that the step has asked for, in one copy: the one time that it waits for the device. times:
        marked before and after drafting, scoring and verifying."""
        told = dict(
            drafted=(proposal.tokens >= 0).sum(1),
            accepted=verified.num_accepted,
            emitted=verified.tokens,
            tested=proposal.tested(verified),
            status=verified.status,
        )
        if hasattr(verified, "path"):
            told["path"] = verified.path
        asked = {name: readback.ask(values) for name, values in told.items()}
        known = {name: reading.rows for name, reading in asked.items()}
        known["emitted"] = [row[: a + 1] for row, a in zip(known["emitted"], known["accepted"])]
        drafting, scoring, verifying = times.seconds()
        return cls(draft_seconds=drafting, target_seconds=scoring + verifying, **known)
