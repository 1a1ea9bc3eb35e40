"""Prompts of an exact length in tokens, whose continuations do not loop.

A small model soon repeats itself after a short or monotonous prompt, and a repeated sentence hides damage. So
a prompt is a page of notes that says something else in each sentence and ends with a request, in the chat
form of the demo model. Every prompt begins differently: nothing is shared in a prefix cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

PEOPLE: Final = (
    "the ferryman", "Agnes Holloway", "a retired surveyor", "the younger of the two sisters", "Dr. Okafor",
    "the night clerk", "an apprentice glazier", "Captain Lindqvist", "my grandmother", "the bell founder",
    "a boy from the upper village", "the harbour master", "Professor Teixeira", "the last postman",
)  # fmt: skip
DEEDS: Final = (
    "counted", "repaired", "argued about", "carried home", "forgot", "sketched", "weighed", "sold", "buried",
    "inherited", "measured", "translated", "photographed", "gave away", "found again", "dreamed of",
)  # fmt: skip
THINGS: Final = (
    "eleven brass lanterns", "a map of the salt marshes", "the letters from Trieste", "an unfinished violin",
    "the ledger of the drowned mill", "three sacks of barley", "a clock without hands", "the orchard wall",
    "a box of glass negatives", "the recipe for black bread", "an old theodolite", "a kite of oiled silk",
    "the minutes of the council", "a pair of ice skates", "the bones of a heron", "two barrels of tar",
)  # fmt: skip
PLACES: Final = (
    "in the boathouse", "behind the chapel", "on the road to Varga", "under the railway bridge",
    "at the winter market", "in a rented room above the bakery", "near the lower lock", "on the north pier",
    "between the quarry and the school", "in the reading room", "at the edge of the glacier",
)  # fmt: skip
TIMES: Final = (
    "in the spring of 1911", "before noon", "on the day of the eclipse", "after the second flood",
    "when the wind turned", "shortly before the war", "every seventh year", "one Tuesday in October",
    "while the bread was rising", "long after midnight", "during the census", "as the fog lifted",
)  # fmt: skip
REASONS: Final = (
    "because nobody else would", "although the law forbade it", "without telling a soul",
    "for a price that is still disputed", "and wrote the number on the door", "so that children might see it",
    "which explains the stain on the ceiling", "and regretted it by evening", "to settle an old bet",
    "as the custom of the valley demands", "with more patience than skill", "but kept one for the museum",
)  # fmt: skip
FORMS: Final = (
    "{time}, {who} {did} {what} {where}, {why}.",
    "{who} {did} {what} {where} {time}.",
    "It is said that {who} {did} {what} {why}.",
    "{where}, {time}, {who} {did} {what}; {other} {did2} {what2} instead.",
    "Nobody asked why {who} {did} {what}, for {other} had {did2} {what2} {time}.",
    "\"{who} {did} {what}?\" asked {other}. \"{where}, and {why}.\"",
    "Of {number} witnesses, only {other} remembered that {who} {did} {what} {where}.",
)  # fmt: skip
REQUESTS: Final = (
    "Write a long and detailed story about a watchmaker who finds a letter inside a clock.",
    "Explain, step by step and in detail, how a lighthouse works and who invented its parts.",
    "Describe a journey by train through five countries: what the traveller eats, sees and hears.",
    "Write a dialogue between a geologist and a painter about the colour of a mountain.",
    "Tell the history of a small town from its founding to the present, with names and dates.",
    "Give a lecture about the migration of birds for students who know nothing of it.",
)  # fmt: skip
HEAD: Final = "<|im_start|>user\n"
TAIL: Final = "\n\nThese were my notes. {request}<|im_end|>\n<|im_start|>assistant\n"
SENTENCES_A_PARAGRAPH: Final = 6


def text(seed: int, sentences: int) -> str:
    """Return so many sentences; equal seeds give equal text."""
    chance = random.Random(seed)
    written = [f"Notebook {chance.randrange(10**6)}, page {chance.randrange(400)}."]
    for number in range(sentences):
        form = chance.choice(FORMS)
        sentence = form.format(
            who=chance.choice(PEOPLE),
            other=chance.choice(PEOPLE),
            did=chance.choice(DEEDS),
            did2=chance.choice(DEEDS),
            what=chance.choice(THINGS),
            what2=chance.choice(THINGS),
            where=chance.choice(PLACES),
            time=chance.choice(TIMES),
            why=chance.choice(REASONS),
            number=chance.randrange(3, 90),
        )
        written.append(sentence[0].upper() + sentence[1:])
        if number % SENTENCES_A_PARAGRAPH == SENTENCES_A_PARAGRAPH - 1:
            written.append("\n\n")
    return " ".join(written)


def prompt(seed: int, tokens: int, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    """Return exactly so many token ids: the notes of `seed`, cut where the request must begin."""
    head = list(encode(HEAD))
    tail = list(encode(TAIL.format(request=REQUESTS[seed % len(REQUESTS)])))
    room = tokens - len(head) - len(tail)
    if room < 1:
        raise ValueError(f"{tokens} tokens are too few for a prompt")
    sentences = room // 8 + 4
    while len(ids := encode(text(seed, sentences))) < room:
        sentences *= 2
    return (*head, *ids[:room], *tail)
