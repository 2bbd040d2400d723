"""What can be true in a story: places, obstacles, weather, food, feelings, things to make.

As in words.py, the order is part of the corpus.
"""

TRAITS = (
    "small brave curious shy clever gentle sleepy cheerful kind quiet lively careful young friendly".split()
)
SAD_FEELINGS = "sad worried upset lonely unhappy nervous gloomy anxious".split()
GLAD_FEELINGS = "happy glad proud cheerful joyful delighted calm grateful".split()
GARMENTS = "boots hat coat scarf".split()
RELATIVES = (
    "grandmother",
    "grandfather",
    "mother",
    "father",
    "aunt",
    "uncle",
    "sister",
    "brother",
    "best friend",
    "teacher",
)
HOMES = (
    "in a hollow tree",
    "in a little house by the sea",
    "near a quiet pond",
    "at the edge of a forest",
    "on a small farm",
    "in a cottage on a hill",
    "beside a slow river",
    "in a cosy burrow",
    "behind the old mill",
    "in a tiny village",
    "in a stone hut",
    "under the roots of an oak",
    "next to a windy beach",
    "in a green valley",
)
SPOTS = (
    "under the old bridge",
    "behind the mill",
    "in the tall grass",
    "on top of a rock",
    "inside a hollow log",
    "beside the well",
    "in the barn",
    "under a pile of leaves",
    "in a bird nest",
    "near the apple tree",
    "on the garden wall",
    "in a deep hole",
    "at the bottom of the stairs",
    "between two big stones",
    "under the wooden bench",
    "by the village gate",
    "in the empty shed",
    "at the edge of the lake",
    "in a rose bush",
    "behind the bakery",
)
HOBBIES = (
    "to sing in the morning",
    "to count the stars",
    "to swim in the pond",
    "to draw pictures in the sand",
    "to climb trees",
    "to tell jokes",
    "to collect shiny stones",
    "to dance in the rain",
    "to read by the fire",
    "to run across the meadow",
    "to plant flowers",
    "to listen to old tales",
    "to watch the clouds",
    "to bake small cakes",
)
MEALS = (
    "warm soup",
    "apple pie",
    "honey cakes",
    "fresh bread",
    "berry jam",
    "hot porridge",
    "sweet plums",
    "roasted nuts",
    "pancakes",
    "carrot stew",
    "cheese and crackers",
    "ginger biscuits",
    "pumpkin pie",
    "ripe pears",
)
SOUNDS = (
    "a soft crying",
    "a strange tapping",
    "a low humming",
    "a funny squeak",
    "a gentle knocking",
    "a long sigh",
    "a quiet song",
    "a loud sneeze",
)
# Where a sound can come from: where its maker is, and the same place without the preposition.
SOUND_PLACES = (
    ("behind the bakery", "the bakery"),
    ("behind the mill", "the mill"),
    ("beside the well", "the well"),
    ("in a deep hole", "a deep hole"),
    ("in a rose bush", "a rose bush"),
    ("in the barn", "the barn"),
    ("in the empty shed", "the empty shed"),
    ("in the tall grass", "the tall grass"),
    ("inside a hollow log", "a hollow log"),
    ("under the old bridge", "the old bridge"),
)
# The weather's word, and what the sky did.
WEATHER = (
    ("windy", "the wind blew through the trees"),
    ("rainy", "rain fell on the roofs"),
    ("sunny", "the sun shone on the fields"),
    ("snowy", "snow covered the ground"),
    ("foggy", "a grey fog lay over the land"),
    ("cold", "there was frost on every leaf"),
    ("warm", "bees hummed in the flowers"),
    ("stormy", "thunder rolled over the hills"),
    ("cloudy", "soft clouds hid the sky"),
    ("hot", "the air was still and dry"),
)
# What blocks the way, and the deeds that get somebody past it.
OBSTACLES = (
    (
        "a wide river",
        (
            "found a row of flat stones to step on",
            "pushed a long log across the water",
            "knew a shallow place to cross",
        ),
    ),
    (
        "a tall fence",
        ("dug a small hole under it", "found a gap between two boards", "held the gate open"),
    ),
    (
        "a dark cave",
        ("lit a little candle", "sang a song to chase the dark away", "went in first"),
    ),
    (
        "a steep hill",
        ("showed a winding path to the top", "pulled from the front with a rope", "carried the heavy bag"),
    ),
    (
        "a fallen tree",
        ("climbed over it and reached out a hand", "cut the small branches away", "lifted one side of it"),
    ),
    (
        "a muddy swamp",
        ("laid dry branches on the mud", "pointed out the firm ground", "made a bridge of reeds"),
    ),
    (
        "a grumpy bull",
        ("distracted it with sweet hay", "talked to it kindly", "led the way around the field"),
    ),
    (
        "a thick fog",
        (
            "rang a little bell so they would not get lost",
            "held on tight and walked slowly",
            "knew every stone of the path",
        ),
    ),
    (
        "a locked gate",
        ("had a key that fitted", "lifted the latch with a stick", "asked the guard to open it"),
    ),
    (
        "a thorny hedge",
        ("found a tunnel through it", "pushed the thorns aside with a plank", "knew a way around it"),
    ),
    (
        "a noisy crowd",
        (
            "asked everyone to make way",
            "found a quiet lane behind the shops",
            "lifted a flag so they could be seen",
        ),
    ),
    (
        "a broken bridge",
        ("tied the boards together with rope", "found a small boat", "mended it with new planks"),
    ),
)
# What somebody makes, the material that is missing, and what became of the work.
WORKS = (
    ("a kite", "paper", "flew high above the roofs"),
    ("a cake", "sugar", "smelled wonderful"),
    ("a raft", "rope", "floated on the pond"),
    ("a den", "branches", "was dry and snug"),
    ("a snow house", "a spade", "sparkled in the light"),
    ("a quilt", "thread", "was soft and bright"),
    ("a swing", "a strong plank", "went up and down all day"),
    ("a garden", "seeds", "was soon full of flowers"),
    ("a song", "a good tune", "made everybody smile"),
    ("a puppet", "a few buttons", "danced on its strings"),
    ("a pot of soup", "salt", "tasted just right"),
    ("a wooden cart", "nails", "rolled along the lane"),
)
