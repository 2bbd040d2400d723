"""Word lists that several kinds of document draw from.

Their order is part of the corpus: a random draw picks an index, so a word moved or added changes every
document made after it.
"""

GIRLS = (
    "Mia Lily Anna Rosa Nora Ella Ivy Hazel Clara Luna Tess Wren Daisy Pearl Greta Maya Juno Flora "
    "Sally Betty"
).split()
BOYS = (
    "Otto Finn Leo Max Sam Toby Hugo Jasper Milo Oscar Felix Theo Bruno Barney Arlo Gus Ned Rufus Walter Pip"
).split()
NAMES = GIRLS + BOYS

ANIMALS = (
    "fox rabbit bear mouse hedgehog owl badger squirrel otter beaver deer duck goose cat dog goat pony "
    "frog turtle mole wolf lamb hen crow"
).split()
COLOURS = "red blue green yellow white black brown golden silver purple orange pink".split()
# What a story is about and what a list of facts mentions: things one can hold.
OBJECTS = (
    "lantern kite drum ball hat scarf basket bell book boat key map ring whistle blanket cup flute coat "
    "wagon mirror umbrella spoon button flag pillow clock brush bucket candle necklace"
).split()
# Only lists of facts mention these: things that have a code or a price.
CONTAINERS = (
    "box bag door chest drawer safe locker case jar crate trunk room gate cabin tower boat wagon tent "
    "shelf desk"
).split()

ADJECTIVES = COLOURS + "big small old new round square tall heavy".split()
ROOMS = (
    "attic kitchen cellar garden garage hall shed office library barn bedroom pantry tower workshop".split()
)
TOWNS = (
    "Ashford|Birchwood|Clayton|Dunmore|Elmhurst|Fernhill|Greenvale|Hollow Bay|Ironbridge|Juniper Hill|"
    "Kingsport|Larkfield|Marlow|Northam|Oakdale|Pinewood|Quarry End|Redcliff|Saltmarsh|Thornton"
).split("|")
SURNAMES = "Bell Hill Stone Wood Field Brook Lake Marsh Reed Frost Berry Moon".split()
# Made-up words are two or three of these, so that a secret word cannot be guessed.
SYLLABLES = (
    "ba be bo da de di fa fi go ka ke ki la le lo ma mi mo na ne no pa pe ra re ri sa se so ta "
    "te ti va ve vo za zu"
).split()

# The words that tasks sort, reverse and count.
TASK_WORDS = (
    "apple bread cloud drum egg fish grass horse ink jar kite leaf milk nest owl plum queen rose sun tree "
    "urn vase wind yarn zebra bird cat dog fire goat hat island jam king lamp moon nut ocean pear rain ship "
    "table wall ant boat cup duck fox gold hill"
).split()
NUMBER_WORDS = "zero one two three four five six seven eight nine ten".split()
