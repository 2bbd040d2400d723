"""The sentences stories are made of, in the template language of grammar.py.

A name stands for the alternatives of one place in a plot (plots.py); cast.py draws the variables. An empty
alternative leaves the sentence out.
"""

# Every story begins so.
OPENING = (
    (
        "{Once upon a time|Once upon a time|Long ago|Once|Many years ago} there {was|lived} $a_trait "
        "$animal called $hero{ who lived $home|. $He lived $home}."
    ),
    "$hero was $a_trait $animal{ who lived $home|. $He lived $home|. $His home was $home}.",
    (
        "{In a faraway land|In a quiet corner of the world|Not so long ago}, $a_trait $animal named "
        "$hero lived $home."
    ),
    "There once was $an_animal named $hero. $He was $trait and lived $home.",
    (
        "$An_animal called $hero lived $home. {Everyone said that|All the neighbours knew that|Friends "
        "agreed that} $he was very $trait."
    ),
)
PASTIME = (
    "$hero {liked|loved} $hobby.",
    "{Every day|On most days|When the work was done}, $he {liked|loved} $hobby.",
    "More than anything, $hero {liked|loved} $hobby.",
    "$His {favourite thing|greatest joy} was $hobby.",
    "",
)
WEATHER_TODAY = (
    "{It was a|One day it was a} $weather {morning|day|afternoon} and $sky.",
    "The {day|morning} was $weather{ and|, and} $sky.",
    "One day {it was|the weather was} $weather. {All around, |}$sky.",
)

# Several plots share these: a worry, an obstacle, a helper, a happy end.
DISMAY = (
    "$hero felt {very |so |}$sad.",
    "$He sat down and felt $sad.",
    "This made $hero {very |quite |}$sad.",
    '"{Oh no|Oh dear|What now}!" {said|cried} $hero, who felt {very |}$sad.',
)
OBSTACLE_AHEAD = (
    "{Soon|After a while|Halfway along the path}, $obstacle blocked the way.",
    "Then $he came to $obstacle and could not go on.",
    "The path ended at $obstacle. $hero did not know what to do.",
    "But {ahead there was|in front of $him stood} $obstacle, and $hero had to stop.",
)
MEETING = (
    "Just then $helper the $helper_animal came {along|by|down the lane}.",
    "A kind $helper_animal called $helper {heard $him|saw $him waiting|stopped to listen}.",
    (
        "$helper, {an old friend|a friendly neighbour|a wise old friend} and {the best $helper_animal "
        "around|a clever $helper_animal|a good $helper_animal}, was passing by."
    ),
    "{Luckily|By good luck}, $helper the $helper_animal was {near|there|on the same road}.",
)
OFFER_OF_HELP = (
    (
        '"{Why are you so $sad|What is wrong|What is the matter|Can I help you}?" asked $helper. '
        '"$lament," {said|answered|sighed} $hero.'
    ),
    (
        '"{Do not worry|Do not cry|Cheer up}, $hero," said $helper. "{I will help you|We can do this '
        'together|Two are better than one}."'
    ),
    '$hero told $helper {everything|the whole story}. "{Come with me|Follow me|Let us go}!" said $helper.',
    '"{Please|Oh, please}, can you help me?" asked $hero. "{Of course|Gladly|Yes, I can}," said $helper.',
)
RESCUE = (
    "$helper $deed{.|, and they went on together.|, so that $hero could pass.}",
    "{Without waiting|At once|Quickly}, $helper $deed.",
    "$helper thought for a moment. Then $helper_he $deed.",
)
RELIEF = (
    "$hero {was|felt} {so |very |}$glad {again|at last|now}.",
    '"{Thank you|Thank you so much|How can I thank you}, $helper!" said $hero, who was $glad.',
    "$hero {hugged|thanked} $helper and felt $glad.",
)
MEAL = (
    "{That evening|Afterwards|At home}, they ate $food {together|by the fire|under the stars}.",
    "To celebrate, they shared $food.",
    "They {sat down|stayed a while} and ate $food {together|until it was late}.",
    "$hero invited $helper for supper, and they ate $food.",
)
ENDING = (
    "From that day on, $hero and $helper were {the best of friends|good friends}.",
    (
        "{And so|In the end}, $hero learned that {a friend is worth more than gold|asking for help is "
        "brave|kindness always comes back}."
    ),
    (
        "{That night|When the moon rose}, $hero {slept well|fell asleep with a smile|dreamed of new "
        "adventures}."
    ),
    "And they {lived happily ever after|often laughed about that day|never forgot that day}.",
    "It had been a {long|good|strange but lovely} day.",
)

# Something is lost and found.
KEEPSAKE = (
    "$hero had $a_coloured_thing that $his $giver had given $him{.| as a present.| long ago.}",
    "$hero owned $a_coloured_thing. It was a gift from $his $giver.",
    "$His $giver had made $hero $a_coloured_thing, and $he took it everywhere.",
    "$hero never went out without $his $coloured_thing, {a present|a gift} from $his $giver.",
)
LOSS = (
    "{But that day|Then|Suddenly} the $thing was gone.",
    "When $hero {looked around|came home|woke up}, the $thing was {gone|missing|nowhere to be seen}.",
    "$hero {reached|looked} for the $thing, but it {was not there|had vanished}.",
)
SEARCH = (
    "$He looked $wrong_spot, but {it was not there|found only dust|there was nothing}.",
    "First $he searched $wrong_spot. {Nothing|No luck} there.",
    (
        "$He {asked the birds|called out loud|looked everywhere}, but {nobody knew|no one answered|it "
        "did not help}."
    ),
    "$hero {set off|went out} to look for it.",
)
FINDING = (
    "There, $spot, was the $thing{!|.}",
    "At last they found the $thing $spot.",
    "And what was that $spot? It was the $thing!",
    "$helper pointed. The $thing was $spot{.|, safe and sound.}",
)

# A present is brought to a relative.
GIFT_PLAN = (
    "$hero wanted to bring $a_coloured_thing to $his $giver, who lived $giver_home.",
    "$His $giver lived $giver_home, and $hero had $a_coloured_thing to give {as a present|for a birthday}.",
    "It was the birthday of $his $giver, so $hero wrapped $a_coloured_thing. The house was $giver_home.",
)
GIFT_JOURNEY = (
    "$hero {set off|left early|started walking} with the $thing {in a bag|on $his back|under one arm}.",
    "$He packed the $thing and {set off|began the walk}.",
)
GIFT_ARRIVAL = (
    (
        'At last they stood {at the door|in front of the house}. "{What a fine|Such a lovely} '
        '$coloured_thing!" said the $giver.'
    ),
    (
        '$His $giver opened the door and {loved|was amazed by} the $thing. "{It is just what I '
        'wanted|How kind of you, $hero}!"'
    ),
    (
        'The $giver was waiting {at the window|by the gate}. {"For me?"|"A present!"} The $thing was '
        "{perfect|a great surprise}."
    ),
)

# Something is made, and one material is missing.
WORK_PLAN = (
    "$hero wanted to make $work, but for that $he needed $material.",
    '"I will make $work," {said|thought} $hero. But $he needed $material.',
    "{All week|For days} $hero had planned to make $work. Only one thing was missing: $material.",
)
WORK_ERRAND = (
    "$He {went out|set off} to find some.",
    "$He looked $wrong_spot, but found {none|nothing}.",
    "So $he {walked through the woods|asked at every house|put on $his $garment and went out}.",
)
WORK_MATERIAL = (
    "$helper {had|kept} $material {at home|to spare|in a box} and shared with $hero.",
    '"Take $material from me," said $helper. "I have {plenty|enough}."',
    "It turned out that $helper had $material and was happy to share.",
)
WORK_DONE = (
    "Together they worked {until noon|all day|hard}. $The_work was ready, and it $work_result.",
    "Soon $work was {ready|done}. It $work_result.",
)

# A sound in the evening turns out to be a new friend.
SOUND_HEARD = (
    "{That night|In the evening|Before bed}, $hero heard $sound coming from $sound_place.",
    "$hero stopped. There was $sound. It came from $sound_place.",
)
SOUND_APPROACH = (
    "$He was $sad, but {also curious|went to look anyway|took $his $coloured_thing and went to look}.",
    "$hero felt $sad. {Slowly|Step by step|On tiptoe}, $he went {closer|to see}.",
)
STRANGER = (
    "It was only $helper, {a young|a lost|a lonely} $helper_animal.",
    "There sat $a_helper_animal called $helper.",
    "And there was $helper the $helper_animal, {all alone|cold and tired|shivering}.",
)
STRANGER_TALK = (
    (
        '"I {lost my way|have no friends here|am so tired}," said $helper. "{Stay with me|Come to my '
        'house|You can be my friend}," said $hero.'
    ),
    (
        '"{Who are you|Are you all right}?" asked $hero. "My name is $helper," said the '
        '$helper_animal. "{I am hungry|I am far from home}."'
    ),
)
STRANGER_GIFT = (
    "$hero gave $helper the $coloured_thing {to keep|to make things better|as a present}.",
    "To cheer $helper up, $hero {gave away|handed over} $his $coloured_thing.",
)
