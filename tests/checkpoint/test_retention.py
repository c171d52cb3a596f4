from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

# The rule alone, for hours of saves.
from hookline.checkpoint.saving.retention import KeptCheckpoint, Retention

HOUR = 3600.0


@given(
    gaps=st.lists(st.integers(1, 10_000), min_size=1, max_size=60),
    max_to_keep=st.none() | st.integers(0, 6),
    every_n_hours=st.none() | st.sampled_from([0.5, 1, 3]),
)
def test_newest_are_kept_and_one_of_the_others_every_n_hours(gaps, max_to_keep, every_n_hours):
    retention = Retention(max_to_keep, every_n_hours)
    written: dict[str, float] = {}
    gone: list[str] = []
    now = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        path = f"c-{number}"
        written[path] = now
        gone += retention.add(path, now)
        assert retention.paths[-1] == path
        if max_to_keep:
            assert retention.paths == list(written)[-max_to_keep:]
    for_good = [path for path in written if path not in gone and path not in retention.paths]
    assert not set(gone) & set(retention.paths)
    assert gone == sorted(gone, key=written.__getitem__)
    if not max_to_keep:
        assert not gone
        assert retention.paths == list(written)
    elif every_n_hours is None:
        assert not for_good
    else:
        period = {path: (time - written["c-0"]) // (every_n_hours * HOUR) for path, time in written.items()}
        kept = [period[path] for path in for_good]
        assert kept == sorted(set(kept) - {0.0})
        assert {period[path] for path in gone} <= {0.0, *kept}


@given(
    max_to_keep=st.integers(0, 4),
    proofs=st.lists(st.sampled_from(["proves", "unknown", "rolled back"]), min_size=1, max_size=40),
)
def test_last_good_is_kept_until_a_later_one_and_is_never_a_suspect(max_to_keep, proofs):
    retention = Retention(max_to_keep)
    on_disk, good = [], None
    for step, proof in enumerate(proofs):
        removed = retention.add(f"c-{step}", float(step), step=step)
        on_disk = [path for path in (*on_disk, f"c-{step}") if path not in removed]
        assert on_disk == retention.paths
        newest = on_disk[-max_to_keep:]
        assert set(on_disk) == {*newest, *([good] if good else [])}
        if proof == "proves":
            retention.mark_good(step)
            good = f"c-{step}"
        elif proof == "rolled back":
            good_then, good = good, good or on_disk[-1]
            retention.mark_suspect(good, step)
            assert retention.last_good == good_then
            retention.mark_good(step)  # So do the weights of the one that was gone back to, and no others.
        assert retention.last_good == good


def test_mark_good_marks_the_newest_up_to_the_step():
    retention = Retention(max_to_keep=5)
    for step in (10, 20, 30):
        retention.add(f"c-{step}", float(step), step=step)
    retention.mark_good(25)
    assert retention.last_good == "c-20"
    recovered = Retention(max_to_keep=5)
    recovered.recover([KeptCheckpoint("c-10", 1.0, step=10), KeptCheckpoint("c-20", 2.0, step=20)], good="c-10")
    assert recovered.last_good == "c-10"
    recovered.mark_good(20)
    assert recovered.last_good == "c-20"
    recovered.recover([KeptCheckpoint("c-10", 1.0, step=10), KeptCheckpoint("c-20", 2.0, step=20)], good="c-20")
    recovered.mark_good(25)
    assert recovered.last_good == "c-20"


@given(st.lists(st.integers(0, 5), max_size=40))
def test_rewritten_path_is_the_newest_and_listed_once(numbers):
    retention = Retention(max_to_keep=3)
    for moment, number in enumerate(numbers):
        assert str(number) not in retention.add(str(number), float(moment))
        assert retention.paths[-1] == str(number)
        assert len(set(retention.paths)) == len(retention.paths) == len(retention.state("").timestamps) <= 3


def test_best_is_kept_until_another_is_marked():
    retention = Retention(max_to_keep=2)
    assert not retention.mark_best(1)
    for step in (1, 2, 3):
        assert retention.add(f"c-{step}", float(step), step=step) == ([] if step < 3 else ["c-1"])
    assert retention.mark_best(2)
    assert [retention.add(f"c-{step}", float(step), step=step) for step in (4, 5)] == [[], ["c-3"]]
    assert retention.paths == ["c-2", "c-4", "c-5"]
    assert retention.mark_best(5)
    assert retention.add("c-6", 6.0, step=6) == ["c-2", "c-4"]
    recovered = Retention(max_to_keep=2)
    recovered.recover([KeptCheckpoint("c-1", 1.0, step=1)], best="c-1")
    assert recovered.best == "c-1"
