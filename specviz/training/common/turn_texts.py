"""Slots of user-turn templates that are themselves texts: sentences, passages, letters, sums, code.

They are the same for every turn; it is the words in them that differ. ``{3-40}`` is a whole number.
"""

from __future__ import annotations

TEXTS: dict[str, tuple[str, ...]] = {
    "sentence": (
        "{name} puts {object} on the table.", "{weather}, so we stayed at the hotel.", "The {job} forgot {object} at home.",
        "I have lost {object}. Have you seen it?", "Where can I buy {food} and {food}?", "We will meet at {place} on {day}.",
        "My {animal} is {2-15} years old and likes {food}.", "{name} wants to learn {hobby} this year.",
        "The train to {city} leaves at {6-22} o'clock.", "Could you please bring {object} to {someone}?",
        "She has been working as a {job} in {city} since {month}.", "I would rather {choice} than {choice}.",
        "There are {3-90} {goods} in the box.", "{weather}, but {name} still went to {place}.",
        "Do you know when {place} opens?", "In {month} we are travelling to {country} by train.",
        "The {colour} house next to {place} belongs to a {job}.", "He said that {message}.",
        "If you need {item}, ask the {job}.", "I am allergic to {food}, can I eat this soup?",
        "{name} and {name} bought {item} for their flat in {city}.", "Please close the door quietly, {someone} is asleep.",
        "The children are playing with {thing} in front of the house.", "My {job} told me to eat more {food}.",
        "Last {day} a {job} found {thing} near {place}.", "How much does {item} cost?", "Every {day} my aunt {weekly}.",
        "I do not understand this word. Can you explain it?", "{name} was born in {city} in {1930-2009}.",
        "Thank you very much for the {goods}, they were wonderful.", "Is there a {job} on this plane?",
        "After the concert they walked along the river to {place}.",
        "The soup with {food} and {food} tastes better than yesterday.",
    ),
    "passage": (
        "{notice}", "{letter}", "{letter}", "{review}", "{report}", "{report}", "{tale}", "{tale}", "{advice}", "{life}",
        "{life}", "{facts}", "{facts}",
    ),
    "notice": (
        "{name} {surname} invites everyone to {place} in {city} on {day}, {1-28} {month}. The doors open at {10-18} o'clock. "
        "There will be {food}, {food} and music. Tickets cost {3-30} euros; children pay half. Please bring {item} if you "
        "have one.",
        "The library in {city} will be closed from {1-14} to {15-28} {month} for repairs. Books can be returned at {place}. "
        "{name} {surname} answers questions by telephone every {day} between {8-11} and {12-16} o'clock.",
        "Lost: {thing}, {colour}, near {place} in {city}, last {day}. It belonged to my grandfather and means a lot to me. A "
        "reward of {20-90} euros is waiting for the finder. Please call {name} {surname}.",
        "Course in {hobby} for beginners, every {day} at {16-20} o'clock in {place}. The teacher is {name} {surname}, a "
        "{job} from {city}. The course lasts {5-12} weeks and costs {40-190} euros. It begins in {month}.",
    ),
    "letter": (
        "Hello, I ordered {item} on {1-28} {month}, but {item} arrived instead. The parcel was also damaged. I have written "
        "twice and got no answer. Please send me the right one before {day} or give me my money back. Regards, {name} "
        "{surname}",
        "Dear Sir or Madam, I stayed at your hotel in {city} for {2-9} nights in {month}. The room was clean and the staff "
        "were kind, but the heating did not work and I could hardly sleep. I would like to ask for a discount. Yours, {name} "
        "{surname}",
        "Hi {name}, I am writing because of {matter}. I will be at {place} until {day} and can only answer in the evening. "
        "Could you please talk to the {job} and tell me what you have decided? Thanks, {name}",
        "Dear {name}, thank you for {item}! It was exactly what I needed. {weather} here, and I use it every day. Next time "
        "you are in {city}, come and see us; my {animal} would love to meet you. Love, {name}",
        "To the team: from {month} on we close at {15-20} o'clock on {day}. Orders of more than {20-90} {goods} have to be "
        "checked by {name}. If a customer asks for a refund, call the office first. {name} {surname}",
    ),
    "review": (
        "I bought {item} {2-20} weeks ago and I am {mood} with it. It is light, it looks good in {colour}, and the price was "
        "fair. Only the instructions are hard to understand. {name} from {city}",
        "Never again! {item} broke after {2-20} days, and nobody answered my emails. The {colour} paint comes off as well.",
        "The food in this restaurant near {place} was excellent, above all the {food} with {food}. We waited {20-70} "
        "minutes, but the waiter was so friendly that we did not mind. {name}, {city}",
    ),
    "report": (
        "The town of {city} wants to build a new bridge near {place}. It will cost {2-40} million euros and take {2-6} "
        "years. Many people hope for less traffic, while a group around {name} {surname} fears for the old trees. The "
        "council votes in {month}.",
        "A {job} from {city} has won this year's prize for {hobby}. {name} {surname}, {20-70}, began only {2-9} years ago. "
        "The jury praised the patience and the sense of humour in the work. The money, {500-9000} euros, goes to a school in "
        "{country}.",
        "Because of {problem}, {city} has changed its rules. From {month} on, shops must report how much they throw away. "
        "Experts think that {10-60} percent can be saved within {2-9} years. Owners of small shops find the plan too "
        "expensive.",
        "Scientists from {country} have studied {animals} for {3-20} years. They found that the animals {behaviour}, which "
        "helps them when food is scarce. {10-90} percent of the young survive. The team wants to know next whether other "
        "species do the same.",
        "A storm hit {country} on {day}. In {city} the wind tore the roof off {place}, and {2-40} thousand homes were "
        "without power. Nobody was hurt. Trains did not run until the evening. {name} {surname}, a {job}, opened her house "
        "to {5-40} travellers.",
    ),
    "tale": (
        "{figure} lived near {place}. One day a stranger brought {thing} and asked for shelter. In the night the thing began "
        "to glow. By morning the stranger was gone, but the whole village could suddenly hear the {animals} speak.",
        "{name} had always wanted to see {place}. On {day} she took {object} and left without a word. On the road she met "
        "{figure}, who {deed}. Together they reached the place, only to find that it had been closed for {2-30} years. They "
        "laughed and went home.",
        "For {10-60} years a {job} kept {thing} in a drawer. His grandson {name} found it and asked what it was for. The old "
        "man told him about a summer in {country}, a lost friend and a promise. The next day they bought two tickets to "
        "{city}.",
    ),
    "advice": (
        "Drink enough water, take a short walk after lunch, and put your phone away an hour before bed. People who do this "
        "for {3-9} weeks say that they have more energy. It matters more to do it every day than to do it perfectly.",
        "Cut {food} and {food} into small pieces and fry them in oil for {5-15} minutes. Add {food}, a little salt and {2-6} "
        "cups of water. Let the soup cook slowly until everything is soft. Serve it with bread. It tastes even better on the "
        "next day.",
        "Before you buy {item}, compare the prices of at least {3-6} shops. Read what other people have written about it, "
        "and check how long the guarantee lasts. Cheap things often have to be replaced after {2-5} years, which makes them "
        "expensive.",
    ),
    "life": (
        "{name} {surname} was born in {city} in {1850-1950}. As the child of a {job}, {name} learned {hobby} early, studied "
        "in {country} and later worked as a {job}. A book about {topic} made the name known. {name} {surname} died at the "
        "age of {60-99}.",
        "{name} works as a {job} in {city}. Every morning {name} gets up at {4-8} o'clock, feeds the {animal} and rides to "
        "{place}. In the evening there is time for {hobby}. On {day} {name} {weekly} with two old friends.",
    ),
    "facts": (
        "Rice grows in warm, wet countries. The seeds are planted in fields under water, which keeps weeds away. After {3-6} "
        "months the plants turn yellow and are cut. More than half of the people in the world eat rice every day.",
        "A lighthouse warns ships of rocks and shallow water. Its lamp turns, so that sailors see flashes, and each "
        "lighthouse has its own rhythm. Today most of them work without a keeper, and ships find their way with the help of "
        "satellites.",
        "The heart is a muscle about as large as a fist. It beats about a hundred thousand times a day and pumps blood "
        "through the whole body. Exercise makes it stronger, while smoking and too much fat harm its vessels.",
        "Paper was invented in China about two thousand years ago. Before that, people wrote on clay, bamboo or skins. Paper "
        "was light and cheap, and the idea travelled with merchants to the west. Machines have made it from wood since the "
        "nineteenth century.",
        "Volcanoes form where melted rock rises from deep inside the earth. Some erupt quietly, with slow rivers of lava; "
        "others explode and throw ash many kilometres high. The soil around them is fertile, which is why people live there "
        "all the same.",
        "Chess is about fifteen hundred years old. It came from India to Persia and from there to Europe, where the queen "
        "became the strongest piece. A game has more possible courses than there are atoms in the world.",
    ),
    "mistaken": (
        "{name} dont have no {goods} and he go to {place} yesterday, {mistaken_word} it were to late.",
        "Me and {name} was very {mood}, {mistaken_word} the {job} have forgot {object}.",
        "I {mistaken_word} want to recieve {item} {mistaken_word} on {day}, there is {2-9} peoples waiting.",
        "Yesterday we goed to {city} and seen {thing}, it was more better then last {month}.",
    ),
    "swapped": (
        "The {animal} sat by the door. {name} gave the {animal} some {food}, and then the {animal} ran to the other animals.",
        "{name} has a {animal}. The {animal} is {2-9} years old. Every {day} the {animal} gets {food}.",
    ),
    "list": (
        "{food}, {food}, {item}, {food}, {thing}, {food}", "{city}, {city}, {country}, {city}, {country}",
        "{goods}, {goods}, {food}, {goods}",
        "- {item}, {5-90} euros\n- {item}, {5-90} euros\n- {item}, {5-90} euros\n- {item}, {5-90} euros",
        "- {name} {surname}, {job}, {20-70}\n- {name} {surname}, {job}, {20-70}\n- {name} {surname}, {job}, {20-70}",
        "{animal}, {animals}, {thing}, {food}, {device}", "{name}, {name}, {name}, {name}, {name}, {name}",
    ),
    "order": (
        "I need {2-9} {goods} for {3-20} euros each, {10-40} {goods} for {1-9} euros each and {item} for {20-90} euros.",
        "{name} ordered {2-9} {goods} at {3-20} dollars, {2-9} {goods} at {3-20} dollars and {2-9} {goods} at {3-20} dollars.",
    ),
    "record": (
        "{{\"name\": \"{name} {surname}\", \"age\": {18-80}, \"city\": \"{city}\", \"job\": \"{job}\", \"hobbies\": "
        "[\"{hobby}\", \"{hobby}\"]}}",
        "{{\"customer\": \"{name} {surname}\", \"city\": \"{city}\", \"order\": [{{\"item\": \"{item}\", \"price\": "
        "{5-90}}}, {{\"item\": \"{item}\", \"price\": {5-90}}}], \"paid\": true}}",
    ),
    "sum": (
        "{name} has {12-90} {goods} and gives {2-11} of them to {name}. How many are left?",
        "{name} buys {2-9} {goods} for {2-12} euros each and pays with a {100-200} euro note. How much money comes back?",
        "A car drives {40-130} km an hour. How far does it get in {2-9} hours?",
        "A bus covers {90-400} km in {2-6} hours. What is its average speed?", "What is {2-30} percent of {100-900}?",
        "{item} costs {20-400} dollars and becomes {5-40} percent more expensive. What does it cost now?",
        "What is {12-99} times {12-99}?", "Calculate {100-999} minus {10-99} plus {10-99}.", "Divide {100-999} by {3-12}.",
        "A square has sides of {3-30} cm. What are its area and its perimeter?",
        "A circle has a radius of {2-20} cm. What is its area?",
        "The angles of a triangle are {20-70} and {20-70} degrees. How large is the third one?",
        "Find x: {2-9}x + {3-30} = {40-99}.", "Solve the equation {2-9}(x - {2-9}) = {20-90}.",
        "What is x if x / {2-9} + {2-9} = {12-30}?",
        "{name} is {3-9} years older than {name}. Together they are {30-80} years old. How old are they?",
        "A recipe for {2-4} people needs {200-900} g of flour. How much is needed for {5-12} people?",
        "There are {10-30} students in a class, and {2-9} of them are ill. Which fraction is present?",
        "{name} saves {5-50} euros a week. How long does it take to save {200-900} euros?",
        "A pool holds {300-900} litres. A pump fills in {10-50} litres a minute. When is it full?",
        "What is the mean of {2-40}, {2-40}, {2-40} and {2-40}?",
        "Find the median of {2-40}, {2-40}, {2-40}, {2-40} and {2-40}.",
        "A die is rolled {2-3} times. What is the probability of {2-3} sixes?",
        "A box has {2-9} white and {2-9} black balls. How likely is white?", "How many {goods} are in {3-12} boxes of {6-24}?",
        "{name} runs {3-12} km on {day} and {3-12} km on {day}. How many metres is that?",
        "Write {2-9}/{10-20} as a decimal number.", "Add {2-9}/{2-9} and {2-9}/{2-9}.",
        "Round {100-999}.{11-99} to one decimal place.", "What is the next number: {2-5}, {6-9}, {10-13}, {14-17}?",
        "What is {2-12} to the power of {2-4}?",
        "{name} works {4-8} hours a day for {10-30} euros an hour. What does {name} earn in {2-5} days?",
        "The sum of two numbers is {20-60} and their difference is {2-10}. What are the numbers?",
        "Factor the number {24-200}.", "A film begins at {1-9}:{10-59} pm and lasts {80-160} minutes. When does it end?",
        "Convert {2-90} miles to kilometres.",
        "{3-9} workers need {4-20} days for a wall. How many days do {2-12} workers need?",
        "What is the square root of {100-900}?",
    ),
}  # fmt: skip
