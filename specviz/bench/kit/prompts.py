"""Prompts that numbers are reported on, by kind. None of them is ever training data."""

from __future__ import annotations

from specviz.inspection import PROMPTS

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
    "My best friend is moving to another country. How can we stay close?",
    "I start a new job on Monday and feel nervous. What would you tell me?",
    "Can you suggest a quiet hobby for long winter evenings?",
    "My neighbour plays loud music at night. How do I bring it up politely?",
    "We have a free weekend and little money. What could a family of four do?",
    "I keep putting off writing my thesis. How do I begin?",
    "Help me choose between a bicycle and a bus ticket for a short way to work.",
    "What small present would you give to a teacher at the end of the year?",
)
TRANSLATION = (
    "Translate to French: The weather is nice today and we are going to the beach with our friends.",
    "Translate to Spanish: My brother works in a hospital and comes home late every evening.",
    "Translate to German: The museum opens at nine and closes at five, but on Sundays it stays open until eight.",
    "Translate to Italian: I would like a table for two by the window, please, and the menu in English.",
    "Translate to Portuguese: The train to the coast leaves in ten minutes from the second platform.",
    "Translate to French: She bought three red apples, a loaf of bread and some cheese at the market this morning.",
    "Translate to Spanish: If it rains tomorrow, we will stay at home and play cards with the children.",
    "Translate to German: My grandmother grows tomatoes and beans in a small garden behind her house.",
    "Translate to Dutch: Could you tell me where the nearest pharmacy is? I need something against a headache.",
    "Translate to Italian: The teacher asked the students to read the first chapter before next Friday.",
)
SUMMARY = (
    "Summarise in two sentences: Coral reefs cover less than one percent of the ocean floor, yet about a quarter of all "
    "marine species live in them. Warmer water makes corals lose the algae they feed on, which leaves them white and weak. "
    "If the water cools in time the algae return; if not, the reef dies.",
    "Summarise in one sentence: The printing press was invented in the fifteenth century. Before it, books were copied by "
    "hand, which was slow and costly. Afterwards ideas spread faster, more people learned to read, and prices fell.",
    "Summarise in two sentences: Honeybees tell each other where food is by dancing. A bee that has found flowers "
    "returns to the hive and runs in the shape of an eight. The angle of the run shows the direction relative to the "
    "sun, and the length of the run shows how far away the flowers are. The other bees follow the dance and then fly "
    "out to look.",
    "Summarise in one sentence: The town council met on Tuesday to discuss the old bridge. Engineers said that it "
    "needs new cables within two years. Repairing it would cost less than building a new one, but traffic would have "
    "to stop for six months. A decision is expected in spring.",
    "Summarise in three short points: A good night's sleep helps the brain to store what was learned during the day. "
    "People who sleep too little find it harder to concentrate and fall ill more often. Doctors advise adults to "
    "sleep seven to nine hours, to go to bed at the same time every day and to leave screens out of the bedroom.",
    "Summarise in two sentences: Glaciers are rivers of ice that move slowly downhill. They form where more snow "
    "falls in winter than melts in summer. As they move, they carve valleys and carry stones far away. Today most of "
    "them are shrinking, because the summers have become warmer.",
    "Summarise in one sentence: Our library lends more than books. Members can borrow tools, board games, musical "
    "instruments and even cake tins. Each item may be kept for three weeks. The idea came from a reader who needed a "
    "drill only once a year.",
    "Summarise in two sentences: The first bicycles had no pedals, and riders pushed themselves along with their "
    "feet. Later models had a huge front wheel, which made them fast but dangerous. The chain drive allowed two "
    "wheels of equal size, and within ten years cycling became something that anyone could learn.",
    "Summarise the plot in two sentences: A young sailor finds a map in the wall of his late uncle's house. He "
    "follows it to an island where an old woman lives alone with her goats. She tells him that the treasure was spent "
    "long ago, to build a school. He stays and becomes its first teacher in thirty years.",
    "Summarise in one sentence what the customer wants: I ordered a pair of blue running shoes in size 42 two weeks "
    "ago. What arrived yesterday was a pair of black ones in size 40. I need the shoes for a race next Saturday, so "
    "please send the right ones by express, or give me my money back.",
)
QUESTION = (
    "Why do leaves change colour in autumn? Answer in three sentences.",
    "How does a vaccine protect the body against a disease?",
    "What causes the tides in the ocean?",
    "Why did people in the Middle Ages build castles on hills?",
    "How does a refrigerator keep food cold?",
    "What is the difference between a virus and a bacterium?",
    "Why do some birds fly south before winter, and how do they find the way?",
    "Who writes the laws in a democracy, and who checks that they are fair?",
    "What happens to a letter after it is dropped into a postbox?",
    "Why is salt put on icy roads?",
)
MATHS = (
    "A train travels 60 km in 45 minutes. What is its speed in km per hour? Show each step.",
    "Tom has 3 boxes with 12 pencils each and gives away 7 pencils. How many are left? Explain.",
    "A rectangle is 14 cm long and 9 cm wide. Find its area and its perimeter, and show the work.",
    "A shirt costs 40 euros and is reduced by 15 percent. What is the new price? Explain each step.",
    "Solve for x: 5x - 7 = 3x + 11. Show every step.",
    "Lena reads 24 pages a day. How many days does she need for a book of 312 pages? Explain.",
    "Three friends share a bill of 87 euros equally and each adds a tip of 4 euros. What does each of them pay?",
    "A tank holds 240 litres and loses 8 litres every hour. After how many hours is it half full? Show the steps.",
    "What is the average of 12, 18, 25, 9 and 31? Write down the calculation.",
    "A bag holds 5 red, 3 green and 2 blue marbles. What is the probability of drawing a green one? Explain why.",
)
CODE = (
    "Write a Python function that returns the longest word in a sentence.",
    "Write a Python function that checks whether a number is prime, with a short explanation.",
    "Write a Python function that removes duplicates from a list and keeps the order.",
    "Write a JavaScript function that turns a string into title case.",
    "Explain what this Python line does: squares = {n: n * n for n in range(10) if n % 2 == 0}",
    "Write an SQL query that lists each customer with the number of orders placed in 2023.",
    "Write a Python class for a bank account with methods to deposit, withdraw and show the balance.",
    "Find the mistake in this Python code and correct it:\ndef mean(numbers):\n    total = 0\n    for number in "
    "numbers:\n        total = number\n    return total / len(numbers)",
    "Write a Python program that asks for a temperature in Celsius and prints it in Fahrenheit.",
    "Write a shell command that counts the lines of all text files in a folder, and explain its parts.",
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
    *PROMPTS,
    "Anna is twice as old as Ben. Together they are 36. How old is each? Show the steps.",
    "Describe the city of Rome to somebody who has never been there.",
    "What is the difference between weather and climate?",
    "Give me a simple recipe for vegetable soup with a list of ingredients.",
    "Explain what a database index is and when it helps.",
    "Write an email asking a teacher for two more days to finish an essay.",
)
