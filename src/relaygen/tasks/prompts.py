"""A few word problems to time generations with."""

from __future__ import annotations

PROMPTS = (
    "A baker fills 7 trays with 12 rolls each and sells 61 rolls. How many rolls are left?",
    "Mia reads 18 pages a day. Her book has 252 pages. After how many days is she through?",
    "A train covers 150 km in 2.5 hours. How far does it get in 4 hours at the same speed?",
    "A shirt costs 40 dollars. It is marked down by 15 percent, then by 10 percent more. What does it cost now?",
    "Tom has 3 times as many marbles as Ann. Together they have 64. How many has Tom?",
    "A tank holds 900 litres and loses 4.5 litres an hour. How full is it after 2 days, in litres?",
    "What is the sum of all odd numbers from 1 to 49?",
    "Five workers build a wall in 12 days. How many days would eight workers need?",
)
