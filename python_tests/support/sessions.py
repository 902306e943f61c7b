# SPDX-License-Identifier: Apache-2.0
"""Sessions whose requests are added over time or all at once, and their events."""


def come_and_go(session, todo, rng):
    """Submit each of `todo` at some time, and cancel some of them while they wait or are decoded.

    Return events by index, and the indices of requests that cancel() ended.
    """
    seen, cancelled, todo = {}, set(), list(todo)
    while todo or session.busy:
        for _ in range(rng.choice([0, 0, 0, 1, 1, 7]) if session.busy else 1):
            if todo:
                index = session.submit(todo.pop(0))
                assert seen.setdefault(index, []) == []
        if seen and rng.random() < 0.2:
            index = rng.choice([s.index for s in session.batch] + list(seen)[-4:])
            over = bool(seen[index]) and seen[index][-1].finished is not None or index in cancelled
            assert session.cancel(index) == (not over)
            cancelled |= set() if over else {index}
        for event in session.step():
            seen[event.index].append(event)
        assert len(session.batch) <= session.slots
    return seen, cancelled


def run(session, todo):
    """Submit everything at once; return events by index."""
    seen = {session.submit(request): [] for request in todo}
    for _ in range(500):
        for event in session.step():
            seen[event.index].append(event)
        if not session.busy:
            break
    assert not session.busy and not session.batch and not session.waiting
    return seen


def check_events(session, seen):
    for i, result in session.results.items():
        assert [t for e in seen[i] for t in e.tokens] == result.tokens
        assert [e.finished for e in seen[i]] == [None] * (len(seen[i]) - 1) + [result.finished]
        assert [e.error for e in seen[i]] == [None] * (len(seen[i]) - 1) + [result.error]
        assert (result.error is None) == (result.finished != "error")
