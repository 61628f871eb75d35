"""The whole run with workers that follow a script: what fails, what dies, what is interrupted."""

import pytest
from tests.measure import planted

from polyattn.measure.comparison import Run
from polyattn.measure.results import Comparison
from polyattn.measure.text import Text
from polyattn.measure.training import jobs_of
from polyattn.measure.worker import WorkerFailed

TEXT = Text("book.txt", False, b"abc" * 333, 999)


class Scripted:
    """A worker in this process. ``deadly`` names variants that end it, ``wrong`` variants that
    fail their job, ``interrupted_at`` a job during which the user has had enough."""

    def __init__(self, deadly=(), wrong=(), interrupted_at=None):
        self.deadly, self.wrong, self.interrupted_at = deadly, wrong, interrupted_at
        self.made, self.open, self.requests = 0, 0, []

    def __call__(self, threads):
        self.made += 1
        self.open += 1
        return ScriptedWorker(self)


class ScriptedWorker:
    def __init__(self, script):
        self.script = script
        self.alive = True
        self.queue = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self.alive = False
        self.script.open -= 1

    def events(self, job, **request):
        assert self.alive, "a dead worker was asked"
        self.script.requests.append((job, request))
        if job == "time":
            yield from self.time(request)
        elif job == "machine":
            machine = planted.comparison().machine
            yield {"event": "result", "result": machine.model_dump(mode="json")}
        else:
            assert job == "count"
            if "n-grams" in self.script.deadly:
                self.alive = False
                raise WorkerFailed("its process was ended by SIGKILL")
            if "n-grams" in self.script.wrong:
                raise WorkerFailed("planted")
            yield {"event": "result", "result": [{"order": 1, "bits": 3.0}]}

    def time(self, request):
        names, length = request["variants"], request["length"]
        measurements = []
        for name in names:
            yield {"event": "begin", "variant": name, "what": "proving"}
            if name in self.script.deadly:
                self.alive = False
                raise WorkerFailed("its process was ended by SIGKILL")
            if (length, name) == self.script.interrupted_at:
                raise KeyboardInterrupt
            measured = planted.measured(name, length, length / 1e5)
            if name in self.script.wrong:
                measured = measured.model_copy(
                    update={"reason": "planted", "forward": None, "backward": None}
                )
            measurements.append(measured)
        yield {
            "event": "result",
            "result": planted.length_run(length, *measurements).model_dump(mode="json"),
        }

    def start(self, job, **request):
        assert job == "learn"
        self.script.requests.append((job, request))
        name, task = request["variant"], request["task"]
        self.queue = [{"event": "point", "step": step, "value": 3.0} for step in (0, 4, 8)]
        if (task, name) == self.script.interrupted_at:
            self.queue[2] = KeyboardInterrupt()
        if (task, name) in self.script.wrong:
            self.queue[2] = WorkerFailed("the loss was nan at step 5")
        if (task, name) in self.script.deadly:
            self.queue[1] = WorkerFailed("its process was ended by SIGKILL")
        curve = planted.curve(name, task, 8.0, 3.0, 2.5, seed=request["seed"])
        self.queue += [
            {"event": "result", "result": curve.model_dump(mode="json")},
            {"event": "done"},
        ]

    def next_event(self, timeout):
        event = self.queue.pop(0)
        if isinstance(event, BaseException):
            self.alive = self.alive and "SIGKILL" not in str(event)
            raise event
        return event


def compare(script, **changes):
    heard = []
    run = Run(planted.plan(("base", "fast", "odd"), **changes), TEXT, heard.append, script)
    return run, heard


def measurement(result, length, name):
    (run,) = (run for run in result.lengths if run.length == length)
    (found,) = (m for m in run.measurements if m.variant == name)
    return found


@pytest.mark.parametrize("fault", ["deadly", "wrong"])
def test_without_n_grams_the_rest_goes_on(fault):
    script = Scripted(**{fault: ("n-grams",)})
    run, _ = compare(script)
    result = run.run()
    assert result.complete
    assert result.ngrams == ()
    assert [note for note in result.notes if note.startswith("no n-gram rows: ")]
    assert all(m.reason == "" for length in result.lengths for m in length.measurements)
    assert script.open == 0


def test_a_whole_run():
    script = Scripted()
    run, heard = compare(script)
    result = run.run()
    assert result.complete
    assert [r.length for r in result.lengths] == [512, 2048]
    assert [m.variant for m in result.lengths[0].measurements] == ["base", "fast", "odd"]
    assert len(result.learning) == len(jobs_of(run.plan)) == 2 * (3 + 1)
    assert all(record.reason == "" for record in result.learning)
    assert [n.order for n in result.ngrams] == [1]
    assert result.machine is not None
    assert script.open == 0
    shares = [progress.share for progress in heard]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_nothing_is_timed_while_anything_trains():
    script = Scripted()
    run, _ = compare(script)
    run.run()
    order = [job for job, _ in script.requests]
    assert order.index("learn") > max(i for i, job in enumerate(order) if job == "time")


def test_a_result_survives_its_json():
    run, _ = compare(Scripted())
    result = run.run()
    assert Comparison.from_json(result.to_json()) == result


def test_without_training_nothing_is_learnt():
    run, _ = compare(Scripted(), train=False)
    result = run.run()
    assert result.complete
    assert (result.learning, result.ngrams) == ((), ())


def test_a_variant_that_ends_the_process_stays_with_its_reason_and_the_others_go_on():
    script = Scripted(deadly=("fast",))
    run, _ = compare(script)
    result = run.run()
    for length in (512, 2048):
        assert "SIGKILL" in measurement(result, length, "fast").reason
        for name in ("base", "odd"):
            assert measurement(result, length, name).forward is not None
    assert [m.variant for m in result.lengths[0].measurements] == ["base", "fast", "odd"]
    assert set(result.failures) == {"fast"}
    assert {record.variant for record in result.learning} == {"base", "odd"}
    assert script.open == 0


def test_if_every_variant_ends_the_process_the_run_still_ends():
    run, _ = compare(Scripted(deadly=("base", "fast", "odd")))
    result = run.run()
    assert set(result.failures) == {"base", "fast", "odd"}
    assert result.complete


def test_a_wrong_variant_is_not_trained():
    run, _ = compare(Scripted(wrong=("odd",)))
    result = run.run()
    assert result.failures == {"odd": "planted"}
    assert "odd" not in {record.variant for record in result.learning}


@pytest.mark.parametrize("ending", ["wrong", "deadly"])
def test_a_training_that_fails_keeps_its_curve_and_the_others_go_on(ending):
    script = Scripted(**{ending: (("text", "fast"),)})
    run, _ = compare(script)
    result = run.run()
    failed = [record for record in result.learning if record.reason]
    assert [(record.task, record.variant) for record in failed] == [("text", "fast")]
    assert failed[0].final is None
    assert len(failed[0].points) == (2 if ending == "wrong" else 1)
    assert len(result.learning) == len(jobs_of(run.plan))
    assert script.open == 0


def test_an_interrupted_run_keeps_what_it_has():
    script = Scripted(interrupted_at=(2048, "fast"))
    run, _ = compare(script)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    result = run.result()
    assert not result.complete
    assert [r.length for r in result.lengths] == [512]
    assert script.open == 0


def test_an_interrupted_training_keeps_its_curves():
    script = Scripted(interrupted_at=("copy", "base"))
    run, _ = compare(script)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    result = run.result()
    assert not result.complete
    cut = [record for record in result.learning if record.reason == "not finished"]
    assert {(record.task, record.variant) for record in cut} == {("copy", "base")}
    assert len(cut[0].points) == 2
    assert {record.task for record in result.learning if not record.reason} == {"text"}
    assert script.open == 0
