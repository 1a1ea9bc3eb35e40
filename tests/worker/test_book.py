"""The worker's book by itself: no threads, no engine, one command after the other."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swapd.config import SimConfig
from swapd.engines.base import StepToken
from swapd.engines.sim import open_sim
from swapd.errors import Code, SwapdError
from swapd.messages.from_worker import Finish, TokenRun
from swapd.messages.generation import GenerationSpec, Sampling
from swapd.messages.to_worker import Grant
from swapd.worker.book import ENDED_KEPT, Book
from swapd.worker.session import Session

CONFIG = SimConfig(block_tokens=4, block_bytes=64, blocks=32, max_num_seqs=4, max_model_len=100)
INFO = open_sim(CONFIG).info


def spec(name: str = "s", new: int = 10) -> GenerationSpec:
    return GenerationSpec(name, (1, 2, 3), Sampling(), new)


def running(book: Book, name: str = "s", epoch: int = 1, limit: int = 8) -> Session:
    book.start(spec(name), epoch, limit, ())
    book.settle()
    found = book.peek(name, epoch)
    assert found is not None
    return found


def step(book: Book, session: Session, *ids: int, finish: Finish | None = None) -> tuple[TokenRun, ...]:
    tokens = [StepToken(session.key, one, None) for one in ids]
    if finish is not None:
        tokens[-1] = tokens[-1]._replace(finish=finish)
    return book.take(tokens)


def prepared(book: Book, limit: int = 8) -> Session:
    session, is_new = book.reserve("m", spec(), 2)
    assert is_new
    book.prepare("m", (5, 6), limit)
    return session


def refusal(call: object, *args: object) -> Code:
    assert callable(call)
    with pytest.raises(SwapdError) as refused:
        call(*args)
    return refused.value.code


def test_a_session_enters_the_engine_with_its_first_credit() -> None:
    book = Book(INFO)
    session = running(book, limit=0)
    assert (session.phase, session.place) == ("waiting", "outside")
    book.grant(Grant("s", 1, 0, 1))
    assert book.settle().enter == (session,)
    assert (session.phase, session.place) == ("running", "prefill")


def test_a_full_window_holds_and_a_credit_lets_go() -> None:
    """H33."""
    book = Book(INFO)
    session = running(book, limit=2)
    step(book, session, 7)
    assert book.settle().hold == ()
    step(book, session, 8)
    assert book.settle().hold == ("s.1",)
    assert session.phase == "held"
    assert book.settle() == ((), (), (), ())
    book.grant(Grant("s", 1, 2, 10))
    assert book.settle().unhold == ("s.1",)
    assert session.tokens == []


def test_a_session_in_prefill_is_never_held() -> None:
    book = Book(INFO)
    session = running(book, limit=2)
    book.grant(Grant("s", 1, 0, 0))
    assert book.settle().hold == ()
    step(book, session, 7)
    assert book.settle().hold == ("s.1",)


def test_tokens_are_kept_until_they_are_accepted() -> None:
    book = Book(INFO)
    session = running(book)
    assert step(book, session, 7, 8, 9) == (TokenRun("s", 1, 1, (7, 8, 9)),)
    book.grant(Grant("s", 1, 2, 10))
    assert session.tokens == [9]
    for nonsense in (1, -4, 99):
        book.grant(Grant("s", 1, nonsense, 10))
        assert (session.accepted, session.tokens) == (2, [9])


def test_a_finished_session_goes_with_its_last_acceptance() -> None:
    book = Book(INFO)
    session = running(book)
    assert step(book, session, 7, 0, finish="eos")[0].finish == "eos"
    assert session.phase == "finished"
    book.grant(Grant("s", 1, 1, 9))
    assert len(book) == 1
    book.grant(Grant("s", 1, 2, 9))
    assert len(book) == 0
    assert book.ended("s", 1) is True
    book.start(spec(), 1, 8, ())
    assert len(book) == 0


def test_prepared_tokens_leave_at_activate_once_and_with_their_finish() -> None:
    """Decision 1."""
    book = Book(INFO)
    session = prepared(book)
    assert [arrival.outputs for arrival in book.settle().arrive] == [(5, 6)]
    assert step(book, session, 7) == ()
    assert step(book, session, 8, finish="stop_token") == ()
    assert session.phase == "prepared"
    # A credit for it cannot make it forget what was never sent.
    assert book.grant(Grant("s", 2, 4, 9)) is None
    assert book.activate("s", 2) == (True, TokenRun("s", 2, 3, (7, 8), "stop_token"))
    assert book.activate("s", 2) == (True, None)
    assert session.phase == "finished"
    assert book.by_move("m") is None


def test_a_prepared_session_without_room_in_its_window_arrives_with_its_first_credit() -> None:
    book = Book(INFO)
    session = prepared(book, limit=2)
    assert book.settle().arrive == ()
    assert book.activate("s", 2) == (True, None)
    book.grant(Grant("s", 2, 2, 3))
    assert [arrival.key for arrival in book.settle().arrive] == [session.key]


def test_activate_of_a_mere_reservation_is_unknown() -> None:
    book = Book(INFO)
    book.reserve("m", spec(), 2)
    assert book.activate("s", 2) == (False, None)
    assert book.activate("other", 2) == (False, None)


def test_only_the_named_epoch_is_found_and_others_are_counted() -> None:
    """H104."""
    book = Book(INFO)
    running(book, epoch=3)
    assert book.find("s", 2) is None
    assert book.fenced == 1
    assert book.find("other", 2) is None
    assert book.fenced == 1
    assert refusal(book.require, "s", 2) is Code.EPOCH_STALE
    assert refusal(book.require, "other", 2) is Code.SESSION_UNKNOWN
    assert refusal(book.start, spec(), 2, 8, ()) is Code.EPOCH_STALE
    assert refusal(book.reserve, "m", spec(), 2) is Code.EPOCH_STALE


def test_an_old_frozen_copy_and_a_new_stay_live_side_by_side() -> None:
    book = Book(INFO)
    old = running(book)
    step(book, old, 7)
    book.freeze(old, "m1")
    new, _ = book.reserve("m2", spec(), 3)
    assert {old.key, new.key} == {"s.1", "s.3"}
    book.forget(old)
    assert book.take_removed() == ("s.1",)
    assert book.by_move("m2") is new


def test_resume_goes_on_under_the_same_or_a_newer_epoch() -> None:
    """B22: the engine's key stays, so nothing is copied or recomputed."""
    book = Book(INFO)
    session = running(book)
    step(book, session, 7)
    book.freeze(session, "m")
    assert book.settle().hold == ("s.1",)
    book.resume("s", 1, None)
    assert book.settle().unhold == ("s.1",)
    book.freeze(session, "m")
    for _ in range(2):
        book.resume("s", 1, 3)
    assert book.peek("s", 3) is session
    assert book.peek("s", 1) is None
    assert session.key == "s.1"
    assert step(book, session, 8) == (TokenRun("s", 3, 2, (8,)),)
    assert refusal(book.resume, "s", 1, None) is Code.EPOCH_STALE
    assert refusal(book.resume, "s", 3, 2) is Code.EPOCH_STALE


def test_what_was_not_frozen_cannot_be_resumed() -> None:
    book = Book(INFO)
    prepared(book)
    assert refusal(book.resume, "s", 2, None) is Code.NOT_ELIGIBLE


def test_the_ledger_counts_sessions_frozen_ones_and_reservations() -> None:
    """H46, H48."""
    book = Book(INFO)
    one = running(book, "a")
    step(book, one, 7)
    book.freeze(one, "m")
    book.reserve("r", spec("b", 93), 2)
    assert book.charged_blocks() == 4 + 24
    assert refusal(book.start, spec("c", 15), 1, 0, ()) is Code.CAPACITY
    assert refusal(book.reserve, "q", spec("c", 15), 2) is Code.TARGET_FULL
    book.start(spec("c", 13), 1, 0, ())
    book.check_integrity()


def test_a_move_belongs_to_one_session_and_a_session_to_one_move() -> None:
    book = Book(INFO)
    first, is_new = book.reserve("m", spec(), 2)
    assert book.reserve("m", spec(), 2) == (first, False)
    assert is_new
    assert refusal(book.reserve, "m", spec("other"), 2) is Code.MANIFEST_MISMATCH
    assert refusal(book.reserve, "n", spec(), 2) is Code.TARGET_FULL


@pytest.mark.parametrize("outputs", [(), tuple(range(10)), (5, CONFIG.vocab_size)])
def test_a_prepare_that_leaves_nothing_to_do_is_refused(outputs: tuple[int, ...]) -> None:
    book = Book(INFO)
    book.reserve("m", spec(), 2)
    assert refusal(book.prepare, "m", outputs, 9) in (Code.MANIFEST_MISMATCH, Code.INVALID_REQUEST)
    assert refusal(book.prepare, "other", (1,), 9) is Code.LEASE_EXPIRED


def test_a_new_coordinator_hears_of_tokens_only_when_it_has_spoken() -> None:
    book = Book(INFO)
    session = running(book)
    step(book, session, 7)
    book.mute()
    assert step(book, session, 8) == ()
    assert book.resend("s", 1, 0, 9) == TokenRun("s", 1, 1, (7, 8))
    assert step(book, session, 9) == (TokenRun("s", 1, 3, (9,)),)
    book.mute()
    assert book.grant(Grant("s", 1, 1, 9)) == TokenRun("s", 1, 2, (8, 9))
    assert refusal(book.resend, "s", 1, 0, 9) is Code.CURSOR_AHEAD
    assert refusal(book.resend, "s", 1, 4, 9) is Code.CURSOR_AHEAD


def test_an_engine_that_will_not_take_a_session_ends_it() -> None:
    book = Book(INFO)
    session = running(book)
    assert book.fail(session) == TokenRun("s", 1, 1, (), "engine_failed")
    book.grant(Grant("s", 1, 0, 8))
    assert len(book) == 0


def test_what_ended_is_remembered_within_bounds() -> None:
    book = Book(INFO)
    for n in range(ENDED_KEPT + 2):
        book.forget(running(book, f"s{n}"))
    assert book.ended("s0", 1) is None
    assert book.ended("s2", 1) is False


class Traffic(RuleBasedStateMachine):
    """Any order of commands leaves the ledger, the indexes and the token counts right."""

    names = st.sampled_from("abc")
    epochs = st.integers(1, 3)

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(INFO)
        self.engine: dict[str, str] = {}
        self.sent: dict[tuple[str, int], list[int]] = {}

    def attempt(self, call: object, *args: object) -> object:
        assert callable(call)
        try:
            return call(*args)
        except SwapdError:
            return None

    def note(self, runs: object) -> None:
        for run in runs if isinstance(runs, tuple) and not isinstance(runs, TokenRun) else (runs,):
            if isinstance(run, TokenRun):
                sent = self.sent.setdefault((run.session, run.epoch), [])
                begin = self.book_start[run.session, run.epoch]
                assert run.first_pos <= begin + len(sent) + 1, "a gap"
                del sent[run.first_pos - begin - 1 :]
                sent += run.ids

    @property
    def book_start(self) -> dict[tuple[str, int], int]:
        """Outputs that existed before the first token of each stay."""
        return {(s.spec.session, s.epoch): len(s.outputs) for s in self.book}

    def remove(self) -> None:
        for key in self.book.take_removed():
            self.engine.pop(key, None)

    @rule(name=names, epoch=epochs, limit=st.integers(0, 4), before=st.integers(0, 2))
    def start(self, name: str, epoch: int, limit: int, before: int) -> None:
        self.attempt(self.book.start, spec(name), epoch, limit, tuple(range(1, before + 1)))

    @rule(name=names, epoch=epochs)
    def reserve(self, name: str, epoch: int) -> None:
        if self.book.peek(name, epoch) is None:
            # Another attempt at the same move; the engine hears of the end of the first before it begins.
            self.sent.pop((name, epoch), None)
            self.remove()
        self.attempt(self.book.reserve, f"{name}{epoch}", spec(name), epoch)

    @rule(name=names, epoch=epochs, limit=st.integers(0, 6))
    def prepare(self, name: str, epoch: int, limit: int) -> None:
        self.attempt(self.book.prepare, f"{name}{epoch}", (1, 2), limit)

    @rule(name=names, epoch=epochs)
    def activate(self, name: str, epoch: int) -> None:
        self.note(self.book.activate(name, epoch)[1])

    @rule(name=names, epoch=epochs)
    def freeze(self, name: str, epoch: int) -> None:
        found = self.book.peek(name, epoch)
        if found and found.stage == "running" and found.place in ("stepping", "held"):
            self.book.freeze(found, "out")

    @rule(name=names, epoch=epochs)
    def resume(self, name: str, epoch: int) -> None:
        self.attempt(self.book.resume, name, epoch, None)

    @rule(name=names, epoch=epochs, accepted=st.integers(0, 10), ahead=st.integers(0, 4))
    def grant(self, name: str, epoch: int, accepted: int, ahead: int) -> None:
        found = self.book.peek(name, epoch)
        if (
            found
            and found.muted
            and found.stage not in ("reserved", "prepared")
            and accepted <= found.position
        ):
            # What a new coordinator has, an earlier one got.
            begin = len(found.outputs)
            self.sent[name, epoch] = list(range(begin + 1, max(accepted, found.accepted) + 1))
        self.note(self.book.grant(Grant(name, epoch, accepted, accepted + ahead)))

    @rule(name=names, epoch=epochs)
    def drop(self, name: str, epoch: int) -> None:
        found = self.book.peek(name, epoch)
        if found:
            self.book.forget(found)

    @rule()
    def mute(self) -> None:
        self.book.mute()

    @rule(finish=st.booleans())
    def engine_step(self, finish: bool) -> None:
        self.remove()
        settlement = self.book.settle()
        for session in settlement.enter:
            assert session.key not in self.engine
            self.engine[session.key] = "in"
        for arrival in settlement.arrive:
            self.engine[arrival.key] = "in"
        for key in settlement.hold:
            assert self.engine[key] == "in"
            self.engine[key] = "held"
        for key in settlement.unhold:
            assert self.engine[key] == "held"
            self.engine[key] = "in"
        tokens = []
        for key in [key for key, place in self.engine.items() if place == "in"]:
            session = self.book.by_key(key)
            assert session is not None
            ends = session.position + 1 >= session.spec.max_new_tokens or (finish and session.position > 5)
            tokens.append(StepToken(key, session.position + 1, "length" if ends else None))
            if ends:
                del self.engine[key]
        self.note(self.book.take(tokens))

    @invariant()
    def holds(self) -> None:
        self.book.check_integrity()
        for session in self.book:
            assert session.position <= session.spec.max_new_tokens
            # The fake engine numbers its tokens, so what was sent must be consecutive numbers.
            sent = self.sent.get((session.spec.session, session.epoch), [])
            begin = len(session.outputs)
            assert sent == list(range(begin + 1, begin + len(sent) + 1))


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
