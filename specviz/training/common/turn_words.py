"""The words that fill the slots of user-turn templates, a list for each slot, words apart by ``|``."""

from __future__ import annotations

_LISTS = {
    "activity": "public speaking|a long hike|moving house|studying for exams|running a small shop|painting a room|"
    "working from home|a job interview|cooking for guests|a bicycle tour|saving money|learning vocabulary|camping in the rain|"
    "buying a used car|raising chickens|writing a speech|renting a flat|taking photographs at night|living without a car|"
    "keeping a diary|teaching children to read|eating less sugar|training for a race|online shopping|learning to drive|"
    "meditation",
    "advise": "What should I do?|What would you advise?|Do you have any tips?|What could help?|Any ideas?|"
    "How would you handle this?|What are my options?|Can you help me?|What is the first step?|Can you give me some advice?|"
    "How do I go about it?|Where do I begin?",
    "animal": "cat|horse|rabbit|duck|parrot|sheep|pony|mouse|donkey|goat|turtle|cow|hen|fox|squirrel",
    "animals": "elephants|owls|octopuses|bats|cats|penguins|ants|whales|foxes|frogs|spiders|crows|horses|turtles|wolves|"
    "parrots|dolphins|squirrels|snakes|butterflies|hedgehogs|camels|giraffes|seals|beavers|flamingos|lions|goats|sharks|"
    "kangaroos",
    "behaviour": "sleep so much|live in groups|change their skin|sing|hide their food|dig holes|play|hunt at night|fear fire|"
    "build nests|travel far|follow each other|wash themselves|clap their wings|stay with their young for years",
    "broken": "def add(a, b)\n    return a + b|for i in range(10)\n    print(i)|def last(items):\n    return items[len(items)]|"
    "def greet(name):\n    print('Hello, ' + nam)|if x = {2-9}:\n    print('yes')|def average(a, b):\n    return a + b / 2|"
    "count = 0\nwhile count < {5-20}:\n    print(count)|def square(n):\n    n * n|print('The result is ' + {10-99})|"
    "numbers = [3, 1, 2]\nnumbers = numbers.sort()\nprint(numbers)|def area(r):\n    return 3.14 * r + r|"
    "let total = 0;\nfor (let i = 0; i <= list.length; i++) {{ total += list[i]; }}",
    "category": "fruit|animals|tools|things one can eat|larger than a car|made of wood|found in a kitchen|round|alive|expensive",
    "choice": "rent a flat|buy a house|walk|take the train|cook at home|eat out|study in the morning|learn at night|"
    "read the news|watch television|work in a team|work alone|live in the city|live in the country|save money|invest it|"
    "buy new clothes|repair old ones",
    "city": "Boston|Vienna|Osaka|Dublin|Lima|Toronto|Seville|Oslo|Cairo|Kraków|Sydney|Porto|Geneva|Austin|Nairobi|Hanoi",
    "claim": "The sun is a star.|Bats are blind.|Gold is heavier than silver.|Humans have four lungs.|"
    "Lightning never strikes twice.|Sound travels faster in water than in air.|Spiders are insects.|Bananas grow on trees.|"
    "The Nile is in South America.|Glass is made of sand.|Water boils at 50 degrees.|Mercury is the largest planet.|"
    "Whales are fish.|Mount Everest is in Asia.|Plants need light.|The Great Wall is in Japan.|Diamonds are made of carbon.|"
    "A triangle has four sides.|Penguins live at the North Pole.|Ice floats on water.",
    "colour": "green|white|grey|yellow|brown|orange|purple|pink|dark red|light blue",
    "concept": "photosynthesis|inflation|gravity|an ecosystem|supply and demand|evolution|machine learning|a black hole|"
    "democracy|blood pressure|an algorithm|friction|globalisation|a solar eclipse|insurance|the water cycle|empathy|"
    "electricity|a metaphor|DNA|compound interest|a hurricane|the immune system|erosion|an operating system|a constitution|"
    "sound|momentum|a budget|an enzyme|magnetism|a startup|biodiversity|a prime minister|a neural network|oxygen|a thesis|"
    "energy|an atom|tax|the food chain|culture|a glacier|probability|osmosis|a patent|encryption|density|migration|a mortgage|"
    "acid rain|stress|a haiku|a comet|fermentation",
    "construct": "a for loop|a dictionary|a class|an exception|a lambda function|recursion|a module|a generator|inheritance|"
    "a closure|a set|a decorator|a promise|an interface|a tuple|string formatting|a constructor|a while loop|an enum|"
    "type checking",
    "country": "Japan|Brazil|Egypt|Canada|Italy|India|Norway|Kenya|Peru|Australia|Greece|Mexico|Turkey|Vietnam|Ireland|Morocco|"
    "Chile|Poland|Thailand|New Zealand|Cuba|Switzerland|Jamaica|Finland",
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "deed": "finds a hidden door|learns to cook|saves a village|loses a map|meets an old enemy|wants to fly|forgets everything|"
    "builds a boat|gets lost in a storm|keeps a secret|wins a race|travels to the moon|hears a strange song|makes a new friend|"
    "breaks a promise|moves to the big city|receives a parcel|repairs an old radio|is afraid of the dark|plants a garden|"
    "searches for a lost brother",
    "device": "a microwave oven|a bicycle brake|a telescope|a battery|a solar panel|a jet engine|a compass|a touch screen|"
    "an elevator|a steam engine|a camera|a thermometer|a submarine|a printer|a hearing aid|a wind turbine|a lock|a radio|"
    "a pendulum clock|a barcode scanner|a hot-air balloon|a loudspeaker|an airbag|a washing machine|a drone|GPS|a heat pump|"
    "an LED lamp|a violin|a search engine",
    "few": "two|three|two|four",
    "figure": "a shy dragon|a retired pilot|an old fisherman|a clever mouse|a girl who cannot lie|a lonely robot|"
    "a young violinist|a lost astronaut|a talking tree|a tired king|a curious cat|a brave postwoman|a clockmaker|"
    "a forgetful wizard|a chess player|a street musician|a sea captain|a snail|a night watchman|two rival bakers|"
    "a blind painter|a little cloud|a thief|a penguin|a detective|a librarian|an owl|a shepherd",
    "food": "rice|eggs|spinach|potatoes|chicken|lentils|mushrooms|salmon|carrots|noodles|beans|feta|pumpkin|tuna|oats|bananas|"
    "zucchini|chickpeas|yoghurt|peppers|cabbage|bacon|sweetcorn|lemons|onions|broccoli|pears|tofu|almonds|garlic",
    "genre": "detective|science fiction|fairy-tale|ghost|love|adventure|fantasy|historical|comic|western|mystery",
    "goods": "notebooks|apples|tickets|candles|eggs|pencils|cups|books|stickers|oranges|marbles|chairs|stamps|cookies|plates|"
    "tulips|batteries|shirts|postcards|bottles",
    "greeting": "Hi!|Hello,|Hi there.|Good evening.|Hey,",
    "hobby": "chess|photography|pottery|knitting|the guitar|bird watching|baking|drawing|sailing|gardening|yoga|calligraphy|"
    "hiking|origami|the piano|astronomy|rock climbing|juggling|cooking|woodworking|fencing|collecting stamps|playing the drums|"
    "sewing|fishing|dancing",
    "howto": "read a file line by line|sort an array|connect to a database|write tests|format a date|copy a list|handle errors|"
    "make an HTTP request|parse JSON|generate random numbers|loop over a dictionary|join strings|measure time|create a thread|"
    "remove spaces from a string|round a number|check the type of a variable|split a string|use environment variables|"
    "write to a file",
    "item": "a coffee machine|a pair of boots|a garden hose|a lamp|a tent|a keyboard|a rain jacket|a blender|a mattress|"
    "a watch|a phone case|a set of knives|a printer|a helmet|a bookshelf|a toy train|a yoga mat|a frying pan|a camera bag|"
    "a clock radio",
    "job": "nurse|teacher|carpenter|pilot|baker|librarian|farmer|engineer|journalist|lawyer|gardener|dentist|waiter|painter|"
    "plumber|architect|cook|vet",
    "language": "French|Spanish|German|Italian|Portuguese|Dutch",
    "leisure": "a board game|a film|a podcast|a day trip|an easy sport|a novel|a museum|a card game|a song|a documentary|"
    "a restaurant",
    "material": "glass|paper|cheese|steel|chocolate|soap|concrete|silk|bread|rubber|wine|sugar|leather|plastic|tea|ink|butter|"
    "cotton|vinegar|bricks",
    "matter": "a delayed delivery|a broken heater|next week's meeting|an unpaid invoice|a lost umbrella|the summer party|"
    "a refund|a new timetable|a job application|holiday plans|a parking space|a late train|a wrong order|an apology|"
    "the annual report",
    "message": "I cannot come tonight|the meeting is at ten|I got the job|I am sorry for being late|we are moving in June|"
    "dinner is ready|the parcel has arrived|I miss them|the concert was wonderful|I need help with the garden|"
    "their dog is at our house|the class is cancelled|I have found their wallet|the rent will be paid on Friday|"
    "I am proud of them",
    "method": "add an item|remove an item|list everything|search by name|sort by price|save to a file|load from a file|reset|"
    "compute the total|print a summary|count the items|update an entry|start|stop|check whether it is full|undo the last change",
    "mistaken_word": "recieve|definately|wich|becuase|freind|tommorow|untill|wierd|adress|beleive|seperate|goverment",
    "moment": "at sunrise|in the rain|on a hot afternoon|during a snowstorm|at night|in spring|after a concert|on market day|"
    "in the year 2200|in fog",
    "month": "January|February|March|April|May|June|July|August|September|October|November|December",
    "mood": "sad|very tired|excited|bored|worried|homesick|happy|stressed|lonely|curious|angry|proud",
    "name": "Emma|Lucas|Sofia|Omar|Mia|Noah|Priya|Jonas|Elena|David|Amina|Felix|Clara|Hugo|Yuki|Carlos|Nora|Ben|Leila|Mark|"
    "Ines|Peter|Rosa|Sam|Greta|Ivan|Julia|Ali",
    "named": "a coffee shop|a grey kitten|a rowing club|a science blog|a parking lot|a shopping cart|a flower shop|"
    "a chess club|a library|a hamster|a cooking channel|a small hotel|a bicycle|a robot|a bookstore|a playlist|a traffic light|"
    "a student|a temperature sensor|a goat",
    "object": "the window|my keys|the old map|a letter|the blue bag|her phone|the door|his glasses|a ticket|the newspaper|"
    "our tent|the cake|a photograph|the bill|a blanket|the umbrella|my coat|the suitcase|a guitar|the garden gate",
    "occasion": "a birthday party for a ten-year-old|a farewell party|a rainy afternoon|a team meeting|an anniversary dinner|"
    "a picnic|a family reunion|New Year's Eve|a school project about water|a class trip|a housewarming party|a movie night|"
    "a garden party|Mother's Day|a long train ride|a retirement party|a school play|a street festival|a science fair|"
    "a christening",
    "opening": "Can you|What|How|Why|I|My|Please|Write|Explain|Give me|Is|Could you|Tell|Create|Describe|When|If|In|The|Help|"
    "We|List|Do you|Which|Let|A|Imagine|Who|Where|Should|There|Hi|Make|Compare|Suppose|For|Are|Generate|Find|Design|You|It|As|"
    "Does",
    "page": "with a form for a name and a message|with a table of three countries|with a picture and a caption|"
    "with a button that shows an alert|with a navigation bar|for a small restaurant|with a list of links|"
    "with a dark background and a heading|with a countdown|with two columns|for a wedding",
    "person": "Marie Curie|Leonardo da Vinci|Nelson Mandela|Isaac Newton|Cleopatra|Ada Lovelace|Galileo Galilei|"
    "Florence Nightingale|Mahatma Gandhi|Amelia Earhart|Johann Sebastian Bach|Charles Darwin|Rosa Parks|Marco Polo|Frida Kahlo|"
    "Alexander Graham Bell|Joan of Arc|Albert Einstein|Jane Austen|Nikola Tesla|Martin Luther King|Louis Pasteur|"
    "Vincent van Gogh|Queen Victoria",
    "place": "the harbour|a small bakery|the railway station|an old castle|the school yard|a mountain hut|the city park|"
    "a crowded market|the hospital|a desert village|the opera house|a quiet beach|an abandoned factory|the airport|a monastery|"
    "the university|a space station|a night train|the botanical garden|a frozen lake|an island|a submarine|the town hall|"
    "a windmill",
    "plan": "I am planning a garden party.|We want to paint the bathroom.|I would like to run a half marathon.|"
    "My parents visit us next week.|I want to save money for a car.|We are going to move into a smaller flat.|"
    "I have an interview on Thursday.|I want to write a novel.|We are expecting a baby.|I want to stop smoking.|"
    "I am going to give a talk about bees.|I want to grow tomatoes on my balcony.|I plan to travel alone for the first time.|"
    "I want to open a small bakery.|I need to prepare for a chemistry exam.|I want to eat less meat.|"
    "We want to start a book club.|I am going to camp with two children.|I would like to learn to swim as an adult.|"
    "I want to sell my old bike.|I want to speak Japanese in a year.|We are organising a wedding for eighty guests.|"
    "I want to build a bird house.|I plan to work from home.|I want to cook for twelve people.|I want to get up earlier.|"
    "I would like to start a podcast.|We plan to repair the garden fence.|I want to volunteer on weekends.|"
    "I am going to study in Canada.",
    "problem": "air pollution|soil erosion|heart disease|traffic jams|forest fires|back pain|unemployment|noise in cities|"
    "tooth decay|floods|food waste|computer viruses|obesity|water shortage|bullying|power cuts|plastic in the sea|"
    "stress at work|identity theft|deforestation",
    "program": "Python|Python|JavaScript|Java|Python|TypeScript",
    "query": "finds all users who live in Berlin|counts the products in each category|returns the five most expensive items|"
    "lists employees with a salary above the average|joins the tables students and courses|deletes all rows older than a year|"
    "adds a column for the phone number|shows the total sales of each month|finds duplicate email addresses|"
    "updates the price of a book|selects the names that begin with A|returns the newest message of each user|"
    "computes the average age|creates a table for recipes|finds students without a course|ranks the players by score",
    "question": "Why is the sky blue?|How do planes stay in the air?|Why do we dream?|What causes earthquakes?|"
    "How do fish breathe?|Why does the moon change its shape?|How was paper invented?|Why do cats purr?|How do magnets work?|"
    "What makes bread rise?|Why do we need sleep?|How does the heart pump blood?|What is the tallest mountain in the world?|"
    "Why do onions make us cry?|How do spiders build their webs?|Why does metal rust?|"
    "What happens in the stomach after a meal?|How did the dinosaurs die out?|Why do stars twinkle?|Who painted the Mona Lisa?|"
    "How is electricity produced from wind?|Why is the ocean salty?|Why do people yawn?|How do computers store pictures?|"
    "What is the capital of Australia?|Why do we have time zones?|How does soap clean our hands?|"
    "What is the role of the United Nations?|Why did the Titanic sink?|How do plants drink water?|Why does ice float?|"
    "What makes a rainbow?|How do glasses help people to see?|Why do countries trade with each other?|What does the liver do?|"
    "How do bees make honey?|Why was the Eiffel Tower built?|How long does light take from the sun to the earth?|"
    "What is a leap year?|Why do we shiver when it is cold?|How do trains switch tracks?|Who discovered penicillin?|"
    "Why do some metals conduct heat well?|How does a bank earn money?|What are the phases of the water cycle?|"
    "Why do people wear wedding rings?|How is a tunnel dug under the sea?|Why do eyes have colours?|"
    "What was the Industrial Revolution?|How do whales sleep?|Why do we hear an echo?|Which language has the most speakers?|"
    "How are mountains formed?|Why do ships float?|What does a judge do?|How do vitamins help the body?|Why does popcorn pop?|"
    "What is inside a volcano?|How does the internet reach an island?|Why do cars need oil?|"
    "How do chameleons change their look?|Why do knuckles crack?|What is the speed of sound?|How is money printed?|"
    "Why does yeast need sugar?|Who built the pyramids?|How does memory work?|Why do we laugh?|What is a shooting star?|"
    "How do forests clean the air?",
    "regex": "matches a phone number|matches a date such as 2024-05-17|finds words in capital letters|matches a postal code|"
    "finds all numbers in a text|matches an HTML tag|validates a user name|matches a time|finds repeated words|matches a URL|"
    "matches a hex colour",
    "shell": "finds all files larger than 100 MB|shows the ten last lines of a log|renames all .jpeg files to .jpg|"
    "searches for a word in a folder|lists the running processes|creates a compressed archive|shows the free disk space|"
    "deletes empty folders|copies a folder to another host|sorts a file and removes double lines|changes the owner of a file|"
    "downloads a file|prints the second column of a table|stops a process",
    "snippet": "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)|"
    "for i in range(1, {5-30}):\n    if i % {2-5} == 0:\n        print(i)|names = sorted(names, key=len)\nprint(names[0])|"
    "with open('data.txt') as file:\n    lines = [line.strip() for line in file]|"
    "total = sum(x ** 2 for x in values)\nprint(total / len(values))|def greet(name):\n    return f'Hello, {{name}}!'|"
    "counts = {{}}\nfor word in text.split():\n    counts[word] = counts.get(word, 0) + 1|"
    "while number > 0:\n    digits.append(number % 10)\n    number //= 10|x, y = y, x|def is_even(n):\n    return n % 2 == 0|"
    "matrix = [[0] * {3-9} for _ in range({3-9})]|def area(width, height):\n    return width * height|"
    "try:\n    value = int(text)\nexcept ValueError:\n    value = 0|result = [a + b for a, b in zip(first, second)]|"
    "import random\nprint(random.choice(['red', 'green', 'blue']))|words = text.lower().split()\nprint(len(set(words)))|"
    "class Dog:\n    def __init__(self, name):\n        self.name = name\n\n"
    "    def bark(self):\n        return self.name + ' barks'|"
    "const doubled = numbers.map(n => n * 2);\nconsole.log(doubled);|SELECT city, COUNT(*) FROM people GROUP BY city;|"
    "def power(base, exponent):\n    result = 1\n    for _ in range(exponent):\n        result *= base\n    return result",
    "some": "three|four|five|a few",
    "someone": "my mother|my boss|a colleague|my little brother|my grandparents|a close friend|the landlord|my roommate|"
    "a customer|my daughter|our coach|a tourist|my uncle|the doctor|a student|my wife|my husband|our choir|a beginner|"
    "the whole class",
    "surname": "Miller|Rossi|Novak|Tanaka|Khan|Silva|Meyer|Dubois|Larsen|Costa|Brown|Kowalski|Evans|Moreno|Singh|Weber|Olsen|"
    "Clark",
    "task": "that reverses a string|that counts the words in a text|that sorts a list of dictionaries by a key|"
    "that merges two sorted lists|that computes the factorial of a number|that returns the Fibonacci numbers up to n|"
    "that checks whether a word is a palindrome|that finds the largest number in a list|"
    "that reads a CSV file and prints the first rows|that flattens a nested list|that removes all punctuation from a text|"
    "that converts Roman numerals to integers|that generates a random password|that counts how often each letter occurs|"
    "that finds the common elements of two lists|that computes the sum of the digits|"
    "that checks whether two words are anagrams|that rotates a matrix|that downloads a web page|"
    "that validates an email address|that rounds numbers to two decimal places|that computes the area of a circle|"
    "that returns the second largest value|that splits a list into chunks|that renames all files in a folder|"
    "that solves a quadratic equation|that does a binary search|that draws a triangle of stars|"
    "that converts minutes to hours and minutes|that logs errors to a file|that parses a date|"
    "that replaces spaces by underscores|that computes the greatest common divisor|that shuffles a deck of cards|"
    "that converts a decimal number to binary|that filters the even numbers|that compares two dates|"
    "that plays rock, paper, scissors|that transposes a table|that finds the shortest string in a list|"
    "that sends an HTTP request|that computes a moving average|that checks whether a year is a leap year|"
    "that capitalises the first letter of a sentence|that groups people by age|that reads JSON and prints all keys|"
    "that simulates a dice roll|that measures how long a function takes|that inverts a dictionary|"
    "that finds all divisors of a number|that converts kilograms to pounds|that implements a stack|that implements a queue",
    "thing": "an umbrella|a mountain bike|a lighthouse|an old piano|a red balloon|a paper boat|a pocket watch|a lantern|"
    "a wooden chair|a silver spoon|a broken mirror|a blue scarf|a winter coat|a teapot|a sewing machine|a kite|a suitcase|"
    "a telescope|a snow globe|a garden chair|a desk lamp|a backpack|a cuckoo clock|a rainbow|a bridge|a lost glove|"
    "a stone wall|a compass|a drum|a candle",
    "tone": "friendly|formal|polite|cheerful|direct|enthusiastic",
    "topic": "volcanoes|friendship|the Silk Road|renewable energy|chocolate|space travel|football|the Roman Empire|recycling|"
    "jazz|robots|rivers|kindness|the internet|coffee|dinosaurs|mountains|fashion|bread|the human heart|electric cars|honesty|"
    "ancient Egypt|bridges|paper|tea|courage|glass|earthquakes|photography|railways|music|the moon|clocks|fairy tales|rice|"
    "the Olympic Games|patience|salt|maps|lighthouses|insects|cheese|the Vikings|wind|public transport|forests|gold|the desert|"
    "teamwork",
    "trip": "a weekend in Lisbon|three days in Prague|a week by the sea|a day at the lake|a business trip to Tokyo|"
    "a school trip to a farm|two weeks in Iceland|a ski holiday|a road trip through Scotland|a cruise|a weekend in New York|"
    "a visit to the desert|a boat trip|a pilgrimage|a summer in Kenya",
    "trouble": "My phone battery is empty by noon.|I forget names all the time.|My plants keep dying.|"
    "I have a headache every afternoon.|I cannot find my passport.|My son refuses to eat vegetables.|"
    "My back hurts after sitting all day.|I spend too much money on clothes.|My computer has become very slow.|"
    "I am afraid of flying.|I am always late for meetings.|My cat scratches the sofa.|I get nervous when I speak in public.|"
    "I quarrelled with my sister.|My bread never rises.|Our internet connection is unstable.|I lost my keys.|"
    "My car makes a strange noise.|I feel lonely in this city.|My shoes get wet in the rain.|I eat too many sweets.|"
    "My team does not talk to each other.|I cannot concentrate when I study.|My hair is very dry.|"
    "The kitchen drain is blocked.|My daughter watches too many videos.|I burnt the rice again.|I have too many emails.|"
    "My glasses fog up in winter.|I am bored at work.|My garden is full of slugs.|I failed my driving test.|"
    "I never finish the books I start.|There are ants in our kitchen.|My roommate never does the dishes.|"
    "I drink too much coffee.|My wrist hurts from typing.|Our old washing machine leaks.|I forgot my best friend's birthday.|"
    "My knees hurt when I run.",
    "weather": "It is raining|It was very cold|The sun is shining|It snowed all night|There was a strong wind|"
    "A storm is coming|It is foggy|The evening was warm|Clouds cover the sky|It has not rained for weeks|The streets are icy|"
    "It was a mild autumn day",
    "weekly": "read in the garden|visits the market|plays tennis|cleans the house|calls an old friend|bakes a cake|"
    "goes swimming|writes letters",
}  # fmt: skip
WORDS: dict[str, tuple[str, ...]] = {slot: tuple(words.split("|")) for slot, words in _LISTS.items()}
