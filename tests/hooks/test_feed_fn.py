from __future__ import annotations

from hookline import op, placeholder
from hookline.train import FeedFnHook


def test_function_gives_the_feed_of_each_run(model):
    x = placeholder("float32", (), name="x")
    twice = op(lambda x: 2 * x)(x)
    batches = iter([{x: 1.0}, {"x:0": 2.0}])
    with model.session(FeedFnHook(lambda: next(batches))) as session:
        assert float(session.run(twice)) == 2.0
        assert float(session.run(twice)) == 4.0


def test_end_of_the_function_ends_the_training(model, probe):
    seen = probe()
    with model.session(FeedFnHook(iter([{}, {}]).__next__), seen) as session:
        while not session.should_stop():
            session.run(model.train)
    assert seen.steps == [1, 2]
