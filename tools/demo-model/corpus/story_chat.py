"""Chat about stories: the user asks for one, or gives one, and asks questions about it."""

from random import Random

from .cast import Wishes
from .documents import ASSISTANT, USER, Segments, chat, exchange
from .grammar import with_article
from .stories import make_story
from .story_world import WEATHER
from .words import ANIMALS, NAMES, OBJECTS

REQUESTS = (
    "Tell me a story about %s.",
    "Write a short story about %s.",
    "Please tell me a story about %s.",
    "Can you tell me a story about %s?",
    "I would like a story about %s.",
)
QUESTION_FRAMES = (
    "%s\n\n%s",
    "Here is a story.\n\n%s\n\n%s",
    "Read this story:\n\n%s\n\n%s",
    "%s\n\nQuestion: %s",
)
THANKS = ("Thank you!", "Thanks.", "Great, thank you.")


def story_request(rng: Random) -> tuple[str, Wishes]:
    """A request for a story, and what it wishes for: an animal, a name, a thing or several of them."""
    wishes = Wishes()
    subjects = []
    subject = rng.random()
    if subject < 0.75:
        wishes.animal = rng.choice(ANIMALS)
        phrase = with_article(wishes.animal)
        if rng.random() < 0.35:
            wishes.hero = rng.choice(NAMES)
            phrase += f" called {wishes.hero}"
        subjects.append(phrase)
    elif subject < 0.9:
        wishes.hero = rng.choice(NAMES)
        subjects.append(wishes.hero)
    if rng.random() < 0.7 or not subjects:
        wishes.thing = rng.choice(OBJECTS)
        subjects.append(with_article(wishes.thing))
    request = rng.choice(REQUESTS) % " and ".join(subjects)
    if rng.random() < 0.15:
        wishes.weather = rng.choice(WEATHER)[0]
        request += f" It should be a {wishes.weather} day."
    return request, wishes


def question_prompt(rng: Random, story: str, question: str) -> str:
    """A user turn that gives a story and asks a question about it."""
    return rng.choice(QUESTION_FRAMES) % (story, question)


def story_chat(rng: Random, stories: int = 1) -> Segments:
    """Chat about that many stories: told on request, or given in the first question."""
    segments: Segments = []
    for _ in range(stories):
        if rng.random() < 0.4:
            request, wishes = story_request(rng)
            story = make_story(rng, wishes)
            segments += exchange(request, story.text)
            questions = rng.sample(story.questions, rng.randint(0, 7))
        else:
            story = make_story(rng)
            questions = rng.sample(story.questions, rng.randint(4, len(story.questions)))
            first = questions.pop()
            segments += exchange(question_prompt(rng, story.text, first.text), first.answer)
        segments += chat(questions)
        if rng.random() < 0.15:
            segments += [(USER, rng.choice(THANKS)), (ASSISTANT, "You are welcome!")]
    return segments
