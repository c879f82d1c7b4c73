"""Prompts that numbers are reported on, by kind. None of them is ever training data."""

from __future__ import annotations

GROUNDED = (
    'Repeat this JSON exactly, but change the value of "city" to "Paris":\n'
    '{"name": "Maria Lopez", "age": 34, "email": "maria.lopez@example.com", "city": "Madrid", "languages": ["Spanish", '
    '"English", "Portuguese"], "active": true, "manager": {"name": "John Smith", "email": "john.smith@example.com"}}',
    "Copy the following text word for word:\n"
    "The lighthouse keeper climbed the narrow stairs every evening to light the great lamp. From the top he could see the "
    "fishing boats coming home, the white cliffs in the distance, and the long road that led to the village. He had kept "
    "the lamp burning for thirty years, and he had never once missed a night.",
    "Rewrite this list with every price in euros instead of dollars, and keep everything else the same:\n"
    "- Apples, 1 kg, 3.20 dollars\n- Bananas, 1 kg, 2.10 dollars\n- Oranges, 2 kg, 5.40 dollars\n- Grapes, 500 g, 4.75 "
    "dollars\n- Lemons, 6 pieces, 2.60 dollars\n- Pears, 1 kg, 3.90 dollars",
    "Rename the variable total to amount in this Python code and print the whole code again:\n"
    "def add_prices(items):\n    total = 0\n    for item in items:\n        total = total + item.price * item.quantity\n"
    "    if total > 100:\n        total = total * 0.9\n    return total\n",
    "Quote the two sentences that speak about bees from this text:\n"
    "Gardens are full of life. Bees visit flowers to collect nectar and pollen, which they carry back to the hive. Birds eat "
    "insects and seeds. Without bees, many plants could not make fruit, because bees move pollen from one flower to another. "
    "Worms keep the soil loose.",
    "Correct only the spelling mistakes in this text and write it out again:\n"
    "Yesterday we went to the musuem in the center of the city. The guide told us about the paintings, the sculptures and "
    "the people who made them. Afterwards we had lunch in a small restaurant near the river, and in the evening we took the "
    "last train home.",
)

CHAT = (
    "What should I think about before I adopt a dog?",
    "I have trouble falling asleep. What could I change in the evening?",
)
TRANSLATION = (
    "Translate to French: The weather is nice today and we are going to the beach with our friends.",
    "Translate to Spanish: My brother works in a hospital and comes home late every evening.",
)
SUMMARY = (
    "Summarise in two sentences: Coral reefs cover less than one percent of the ocean floor, yet about a quarter of all "
    "marine species live in them. Warmer water makes corals lose the algae they feed on, which leaves them white and weak. "
    "If the water cools in time the algae return; if not, the reef dies.",
    "Summarise in one sentence: The printing press was invented in the fifteenth century. Before it, books were copied by "
    "hand, which was slow and costly. Afterwards ideas spread faster, more people learned to read, and prices fell.",
)
QUESTION = (
    "Why do leaves change colour in autumn? Answer in three sentences.",
    "How does a vaccine protect the body against a disease?",
)
MATHS = (
    "A train travels 60 km in 45 minutes. What is its speed in km per hour? Show each step.",
    "Tom has 3 boxes with 12 pencils each and gives away 7 pencils. How many are left? Explain.",
)
CODE = (
    "Write a Python function that returns the longest word in a sentence.",
    "Write a Python function that checks whether a number is prime, with a short explanation.",
)
KINDS = {
    "chat": CHAT,
    "translation": TRANSLATION,
    "summarising": SUMMARY,
    "question answering": QUESTION,
    "maths": MATHS,
    "code": CODE,
}

# For calibrating trees: neither reported on nor trained on.
CALIBRATION = (
    "What are three good habits for staying healthy, and why do they help?",
    "Explain how rain forms, step by step.",
    "Write a short story about a fox who learns to swim.",
    "Write a Python function that counts the vowels in a word and explain it.",
    "Anna is twice as old as Ben. Together they are 36. How old is each? Show the steps.",
    "Describe the city of Rome to somebody who has never been there.",
    "What is the difference between weather and climate?",
    "Give me a simple recipe for vegetable soup with a list of ingredients.",
    "Explain what a database index is and when it helps.",
    "Write an email asking a teacher for two more days to finish an essay.",
)
