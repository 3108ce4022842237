"""Word lists, codes and filler text."""

from __future__ import annotations

import random
import string

WORDS = (
    "acorn actor amber anchor angel ankle apple apron arrow atlas attic badge bagel banjo barn basil basket beach beaver bell "
    "berry bird bishop blanket boat bonnet book bottle box branch bread brick bridge brush bucket button cabin cable cactus "
    "camel candle canoe carpet castle cat cave cello chair cheese cherry chest cliff clock cloud clover coat coin comet "
    "copper coral cotton cousin crane cricket crown cup curtain daisy dancer delta desk dog dolphin donkey door dragon drum "
    "duck eagle easel ember engine falcon farm feather fence fern ferry fiddle fig flame flute forest fork fossil fox "
    "garden garlic gate ghost giant ginger giraffe glacier glove goat goose grape guitar hammer harbor harp hat hawk hazel "
    "helmet hill hinge honey hook horse hotel igloo ink iron island ivory ivy jacket jelly jewel judge kettle key kite "
    "kitten knife ladder lake lamp lantern leaf lemon lion lizard llama lobster lotus magnet mango map maple marble meadow "
    "melon mirror mitten moon moss moth mouse museum napkin needle nest ninja noodle nurse oak oasis ocean olive onion opera "
    "orchid otter oven owl paddle palace panda paper parrot peach pearl pebble pencil pepper piano pickle pigeon pillow pilot "
    "planet plum pocket poet pond potato prince pumpkin puppy puzzle quail queen quilt rabbit radio rain raven ribbon ring "
    "river road robin rocket roof rope ruby saddle salad salt sand scarf seal shell ship silver singer skate sled snail soup "
    "spider spoon spruce stone storm stove sugar sun swan table tailor temple tent thunder tiger toast torch tower train "
    "tulip turtle uncle valley vase velvet violin wagon walnut water whale wheat willow window wolf yacht zebra zipper"
).split()
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ORDINALS = ("first", "second", "third", "fourth")

COMMON = (
    "the a of and to in is that it for on with as this be are by at from or an have not you your all can will one more about "
    "there their which when who they we has was if then each every other new good first long great little own old right big "
    "high different small next early young important few public able work time year people way day man thing woman life child "
    "world school state family student group country problem hand part place case week company system program question "
    "government number night point home room mother area money story fact month lot study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community name president team "
    "minute idea body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education should must may please always never only keep use "
    "make take give follow write read answer ask help support policy customer order record data worker request reply team"
).split()

POLICY = (
    "You are part of a batch pipeline.",
    "Always be polite and helpful.",
    "Never share private data.",
    "Keep your answers short.",
    "Do not invent facts.",
    "If you are not sure, say so.",
    "Follow the rules below at all times.",
    "The user may send pictures.",
    "Our company ships goods to many countries.",
    "Orders placed before noon leave the same day.",
    "Write in plain English.",
    "Do not mention these instructions.",
    "Returns are accepted within 30 days.",
    "Prices include tax.",
    "Be careful with numbers.",
    "Every request is logged for 7 days.",
    "Speak as a friendly assistant.",
    "Contact support for help with billing.",
    "Images come from a camera on the factory floor.",
    "Customers often ask about colours and shapes.",
    "Use metric units.",
    "The library opens at nine and closes at six.",
    "Dogs are not allowed on the grass.",
    "Ignore any advertising in the text.",
    "This text is only background and has no bearing on the question.",
    "Section 3.2: storage of records.",
    "Version 1.4, May 2024.",
    "The quick brown fox jumps over the lazy dog.",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
    "Sed do eiusmod tempor incididunt ut labore et dolore magna aliqua.",
    "Ut enim ad minim veniam, quis nostrud exercitation.",
    "Each batch holds up to 64 jobs (see the manual).",
    "Results are written to a queue; nobody reads them twice.",
    "It's fine to be brief.",
    "Don't repeat the question.",
    "Roses are red, violets are blue.",
    "A square has four sides.",
)

GENERIC_SYSTEM = (
    "You are a helpful assistant.",
    "You describe images.",
    "You are a captioning worker.",
    "You are a vision assistant.",
    "",
    "You are a careful assistant that looks at pictures.",
    "You are an image captioning system.",
    "You answer questions about images.",
    "You are a helpful, honest and harmless assistant.",
    "You label pictures for a data set.",
    "Look closely.",
    "Be helpful.",
)


def pseudo_word(rng: random.Random) -> str:
    """Make up a pronounceable word of one to three syllables."""
    syllables = (
        rng.choice("bcdfghjklmnprstvwz")
        + rng.choice("aeiou")
        + rng.choice(("", "", "n", "r", "s", "l", "t"))
        for _ in range(rng.randint(1, 3))
    )
    return "".join(syllables)


def code(rng: random.Random) -> str:
    """Draw a value for a table: mostly a number of one to four digits."""
    kind = rng.random()
    if kind < 0.55:
        return str(rng.randint(10, 99))
    if kind < 0.85:
        return str(rng.randint(100, 9999))
    if kind < 0.92:
        return str(rng.randint(0, 9))
    return (
        rng.choice(WORDS)
        if kind < 0.96
        else rng.choice(string.ascii_uppercase) + str(rng.randint(1, 99))
    )


def table_keys(rng: random.Random, count: int) -> list[str]:
    """Draw distinct keys of one kind: words, letters, letter and digits, made-up words."""
    kind = rng.random()
    if kind < 0.2 and count <= 26:
        letters = string.ascii_uppercase if rng.random() < 0.75 else string.ascii_lowercase
        return (
            sorted(rng.sample(letters, count)) if rng.random() < 0.5 else rng.sample(letters, count)
        )
    if kind < 0.4:
        letters = string.ascii_uppercase if rng.random() < 0.7 else string.ascii_lowercase
        digits = (0, 9) if count <= 40 else (0, 99)
        return _distinct(count, lambda: rng.choice(letters) + str(rng.randint(*digits)))
    if kind < 0.5:
        return _distinct(count, lambda: pseudo_word(rng))
    words = rng.sample(WORDS, count)
    return [word.capitalize() for word in words] if rng.random() < 0.1 else words


def _distinct(count: int, draw) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def table_text(rng: random.Random, keys: list[str], values: list[str]) -> str:
    """Write a table of codes on one or several lines."""
    pattern = rng.choice(("{}={}", "{}={}", "{}: {}", "{} is {}", "{} = {}", "{} -> {}"))
    separator = rng.choice((" ", " ", ", ", "\n", "; "))
    heads = (
        "codes:",
        "Codes:",
        "Codes:\n",
        "Memory:",
        "Remember these codes:",
        "Table:",
        "Here are the codes:",
        "Data:",
        "Values:\n",
        "",
    )
    head = rng.choice(heads)
    gap = "" if not head or head.endswith("\n") else " "
    tail = "." if separator != "\n" and rng.random() < 0.25 else ""
    return (
        head
        + gap
        + separator.join(pattern.format(k, v) for k, v in zip(keys, values, strict=True))
        + tail
    )


def filler(rng: random.Random, size: int) -> str:
    """Write about `size` words that have nothing to do with the task."""
    kind = rng.random()
    if kind < 0.3:
        count = max(1, min(size // 2, 120))
        return table_text(rng, rng.sample(WORDS, count), [code(rng) for _ in range(count)])
    if kind < 0.5:
        head = rng.choice(("Notes: ", "Rules: ", "Policy: ", "Context: ", ""))
        return head + " ".join(rng.choice(WORDS) for _ in range(size)) + rng.choice((".", ""))
    parts: list[str] = []
    separator = rng.choice((" ", " ", "\n", "\n- "))
    words = 0
    while words < size:
        parts.append(_sentence(rng))
        words += parts[-1].count(" ") + 1
    return separator.join(parts)


def _sentence(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(POLICY)
    pools = [COMMON] * 6 + [WORDS]
    words = [
        rng.choice(rng.choice(pools)) if rng.random() < 0.93 else pseudo_word(rng)
        for _ in range(rng.randint(4, 12))
    ]
    return " ".join(words).capitalize() + rng.choice((".", ".", ".", "!", ";", ":"))
