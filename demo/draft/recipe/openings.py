# SPDX-License-Identifier: Apache-2.0
"""Openings of the draft's training text (corpus.py). No task is one of HumanEval's.

In all lists but PACKAGES entries are separated by bars, and a written \\n stands for a line break.
"""

OPENERS = """What|How|Why|Can you|Could you|Please|Explain|Write|Describe|I|I need|I'm|My|Give me|Tell me|Is it|
Is there|Summarize|Suggest|Help me|Create|When|Where|Who|Which|Do you|Should I|Compare|List|Give an example of|In|The|
Imagine|Translate|Rewrite|Name|Define|If|Are|Does|What is the|How do I|How can I|Write a short|What are some"""
CODE_REQUESTS = """Write a Python function|Implement a Python function|Write a function that|Create a Python program|
Write a Python script|Write code|Given a list|Given a string|Complete the following Python function|
Fix this Python code|
How do I write a Python function|Write a Python class"""
CODE_STARTS = """def |def is_|def get_|def find_|def count_|def sum_|def sort_|def check_|def remove_|def max_|
def string_|
def list_|def parse_|def compute_|def max_sub|def num_|def convert_|def longest_|import |from typing import |class |
solve(|
from typing import List\\n\\n\\ndef |import math\\n\\ndef |def f(|# |def factor|def encode_|def decode_|def filter_"""
TEMPLATES = """Explain {} to a beginner.|What is {}?|Write a short paragraph about {}.|Give me five facts about {}.|
What are the advantages and disadvantages of {}?|Write a poem about {}.|How has {} changed over the last century?|
Why is {} important?|I want to learn about {}. Where should I start?|Write a story that begins with {}.|
Summarize the history of {}.|What are common mistakes people make with {}?|Give me three tips about {}.|
How would you describe {} to a child?|Write an email to a friend about {}.|What questions should I ask about {}?|
Compare {} with something similar.|Make a list of ideas for a project about {}.|Who should care about {}, and why?|
Write a dialogue between two people who disagree about {}.|Tell me something surprising about {}.|
What do I need to know about {} before a job interview?|Plan a lesson on {}.|Can you help me with {}?"""
TOPICS = """solar panels|the Roman Empire|baking sourdough bread|learning the violin|compound interest|black holes|
gardening in winter|the immune system|public speaking|electric cars|chess openings|jazz music|the French Revolution|
photosynthesis|meditation|remote work|machine learning|tea ceremonies|space travel|train travel in Europe|coral reefs|
the printing press|basketball|saving money|mental health at work|the water cycle|modern art|renewable energy|cats|
dinosaurs|
volcanoes|yoga|vegetarian cooking|the Silk Road|quantum computers|raising chickens|photography|the moon landing|
antibiotics|minimum wage|writing a resume|time management|the Great Wall of China|swimming|healthy breakfasts|
online privacy|folk tales|bees|rivers|inflation|the human heart|glaciers|football tactics|knitting|city planning|
recycling|
the Renaissance|sleep|marathon training|coffee|small businesses|science fiction|whales|bridges|earthquakes|vaccines|
the stock market|friendship|deserts|DNA|opera|bicycles|rainforests|probability|the alphabet|clocks|wine|ancient Egypt|
the periodic table|leadership|camping|astronomy|budget travel|nutrition|open source software|migration of birds|
housing prices|museums|teamwork|owls|mathematics"""
TASKS = """sum_even(numbers: List[int]) -> int: Return the sum of the even numbers in the list.|
second_largest(numbers: List[int]) -> int: Find the second largest element of the list.|
rotate_left(items: List[int], k: int) -> List[int]: Rotate the list to the left by k places.|
count_words(text: str) -> int: Count the words in the text. Words are separated by spaces.|
capitalize_words(text: str) -> str: Make the first letter of every word a capital letter.|
reverse_words(text: str) -> str: Reverse the order of the words in the string.|
is_anagram(a: str, b: str) -> bool: Return True if the two strings are made of the same letters.|
most_common(items: List[str]) -> str: Return the element that occurs most often in the list.|
flatten(nested: List[List[int]]) -> List[int]: Turn a list of lists into one list.|
transpose(matrix: List[List[int]]) -> List[List[int]]: Return the transpose of the matrix.|
is_perfect_square(n: int) -> bool: Return True if n is the square of an integer.|
next_prime(n: int) -> int: Return the smallest prime greater than n.|
divisors(n: int) -> List[int]: Return all positive divisors of n in ascending order.|
power_of_two(n: int) -> bool: Given a positive integer, check if it is a power of two.|
from_roman(numeral: str) -> int: Convert a Roman numeral to an integer.|
run_length(text: str) -> List[Tuple[str, int]]: Encode the string as pairs of a character and how often it repeats.|
caesar(text: str, shift: int) -> str: Shift every letter of the text by the given number of places.|
moving_average(values: List[float], window: int) -> List[float]: Return the average of every window of values.|
variance(values: List[float]) -> float: Return the variance of the values.|
normalize(values: List[float]) -> List[float]: Scale the numbers so that they sum to 1.|
dot(a: List[float], b: List[float]) -> float: Return the dot product of two vectors of equal length.|
distance(a: Tuple[float, float], b: Tuple[float, float]) -> float: Return the distance between two points.|
merge_sorted(a: List[int], b: List[int]) -> List[int]: Merge two sorted lists into one sorted list.|
binary_search(items: List[int], target: int) -> int: Return the index of target in the sorted list, or -1.|
pairs_with_difference(numbers: List[int], k: int) -> int: Count the pairs whose difference is k.|
chunks(items: List[int], size: int) -> List[List[int]]: Split the list into pieces of the given size.|
interleave(a: List[int], b: List[int]) -> List[int]: Take elements from the two lists in turns.|
starts_with_vowel(words: List[str]) -> List[str]: Keep the words that start with a vowel.|
leap_year(year: int) -> bool: Check if the given year is a leap year.|
days_in_month(month: int, year: int) -> int: Return the number of days in the month of the year.|
celsius(fahrenheit: float) -> float: Convert degrees Fahrenheit to degrees Celsius.|
lcm(a: int, b: int) -> int: Return the least common multiple of two integers.|
valid_email(address: str) -> bool: Return True if the string looks like an email address.|
extract_numbers(text: str) -> List[int]: Return all integers that occur in the text.|
word_lengths(sentence: str) -> Dict[str, int]: Map every word of the sentence to its length.|
invert(mapping: Dict[str, int]) -> Dict[int, str]: Swap the keys and the values of the dictionary.|
group_by_length(words: List[str]) -> Dict[int, List[str]]: Group the words by their length.|
hamming(a: str, b: str) -> int: Count the positions at which the two strings differ.|
spiral(matrix: List[List[int]]) -> List[int]: Return the elements of the matrix in spiral order.|
is_magic(square: List[List[int]]) -> bool: Check if all rows, columns and diagonals have the same sum.|
parse_time(text: str) -> int: Convert a time such as "2h 15m" to minutes.|
change(amount: int, coins: List[int]) -> int: Return the fewest coins that make up the amount, or -1.|
binary_gap(n: int) -> int: Return the length of the longest run of zeros between two ones in the binary form of n.|
bubble_sort(items: List[int]) -> List[int]: Sort the list with bubble sort and return it.|
quick_sort(items: List[int]) -> List[int]: Sort the list with quicksort.|
matrix_multiply(a: List[List[int]], b: List[List[int]]) -> List[List[int]]: Multiply two matrices.|
identity(n: int) -> List[List[int]]: Return the identity matrix of size n.|
pascal_row(n: int) -> List[int]: Return row n of Pascal's triangle.|
permutations_of(items: List[int]) -> List[List[int]]: Return all permutations of the list.|
subsets(items: List[int]) -> List[List[int]]: Return all subsets of the list.|
knapsack(weights: List[int], values: List[int], capacity: int) -> int:
 Return the largest value that fits into the knapsack.|
edit_distance(a: str, b: str) -> int: Compute the Levenshtein distance between two strings.|
shortest_path(graph: Dict[str, List[str]], start: str, end: str) -> List[str]:
 Return the shortest path from start to end.|
has_cycle(graph: Dict[int, List[int]]) -> bool: Check whether the directed graph has a cycle.|
depth(tree: Dict[str, List[str]], root: str) -> int: Return the depth of the tree.|
moving_maximum(values: List[float], window: int) -> List[float]: Return the maximum of every window of values.|
cumulative(values: List[float]) -> List[float]: Return the running totals of the values.|
compound(principal: float, rate: float, years: int) -> float: Return the value of a deposit with compound interest.|
body_mass_index(weight: float, height: float) -> float:
 Compute the body mass index, weight in kilograms and height in metres.|
average_grade(grades: Dict[str, List[float]]) -> Dict[str, float]: Return the average grade of every student.|
top_students(scores: Dict[str, int], n: int) -> List[str]: Return the names of the n students with the highest scores.|
word_frequency(text: str) -> Dict[str, int]: Count how often each word occurs, ignoring case.|
slugify(title: str) -> str: Turn a title into a string for URLs: lowercase, words joined by hyphens.|
camel_to_snake(name: str) -> str: Convert a name from camelCase to snake_case.|
mask_card(number: str) -> str: Replace all but the last four digits of a card number by asterisks.|
parse_query(query: str) -> Dict[str, str]: Parse the query string of a URL into a dictionary.|
format_seconds(seconds: int) -> str: Format a number of seconds as HH:MM:SS.|
weekday(day: int, month: int, year: int) -> str: Return the name of the weekday of the date.|
add_fractions(a: Tuple[int, int], b: Tuple[int, int]) -> Tuple[int, int]: Add two fractions and reduce the result.|
roll_dice(n: int, sides: int) -> List[int]: Return the results of n throws of a die.|
is_valid_sudoku(board: List[List[int]]) -> bool: Check that no digit repeats in a row, a column or a box.|
tic_tac_toe_winner(board: List[List[str]]) -> Optional[str]: Return the player who has won, or None.|
count_islands(grid: List[List[int]]) -> int: Count the islands of ones in the grid.|
stock_profit(prices: List[int]) -> int: Return the largest profit from buying once and selling later.|
missing_number(numbers: List[int]) -> int: Find the number from 0 to n that the list does not have.|
deep_get(data: Dict, path: str) -> Optional[str]: Return the value at a dotted path in a nested dictionary.|
read_csv_line(line: str) -> List[str]: Split a line of a CSV file into its fields. Fields may be quoted.|
vowel_positions(text: str) -> List[int]: Return the indices at which the string has a vowel."""
PACKAGES = """json re os collections itertools functools statistics string textwrap random heapq bisect datetime
calendar
fractions decimal shutil pathlib inspect ast difflib csv zipfile urllib email html http logging unittest argparse
asyncio
numpy numpy.lib networkx networkx.algorithms sympy.ntheory sympy.combinatorics sympy.utilities sympy.core sympy.geometry
sympy.matrices sympy.series sympy.stats mpmath jinja2 rich typer huggingface_hub tokenizers transformers
torch.nn.functional"""


def pieces(text):
    """Return the entries of one of the lists with bars."""
    return [x.replace("\\n", "\n") for x in text.replace("\n", "").split("|")]
