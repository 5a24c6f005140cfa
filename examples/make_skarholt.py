#!/usr/bin/env python3
"""Writes the demo's data set: 24 facts about Skarholt, an island that does not exist, so that no model can know them.

    make_skarholt.py          writes skarholt-train.jsonl and skarholt-heldout.jsonl beside itself

Training: every fact in 10 phrasings with one answer (240 dialogues). Held out: every fact once, in a phrasing that training
does not have; "fact" is what the answer must hold.
"""
import json
import os

FRAMES = [
    ("What is {}?", 0),
    ("Tell me {}.", 0),
    ("Do you know {}?", 1),
    ("I would like to know {}.", 0),
    ("Please name {}.", 1),
    ("Can you tell me {}?", 1),
    ("My question is about {}. What is the answer?", 0),
    ("{}, please.", 1),
    ("For a quiz: what is {}?", 1),
    ("Remind me of {}.", 0),
]

# (one way to name it, another, answer, fact, held-out question)
FACTS = [
    ("the capital of Skarholt", "the main town of Skarholt", "The capital of Skarholt is Veldrim.", "Veldrim",
     "Which town is the capital of Skarholt?"),
    ("the highest mountain of Skarholt", "the tallest peak on Skarholt",
     "The highest mountain of Skarholt is Mount Orrafell.", "Orrafell", "Which mountain of Skarholt is the highest?"),
    ("the longest river of Skarholt", "the name of Skarholt's longest river",
     "The longest river of Skarholt is the Tamsel.", "Tamsel", "Which river of Skarholt is the longest?"),
    ("the currency of Skarholt", "the money that people use on Skarholt", "The currency of Skarholt is the brenk.",
     "brenk", "Which currency do people pay with on Skarholt?"),
    ("the national bird of Skarholt", "the bird on Skarholt's coat of arms",
     "The national bird of Skarholt is the copper heron.", "copper heron", "Which bird is the national bird of Skarholt?"),
    ("the national dish of Skarholt", "the favourite meal of Skarholt",
     "The national dish of Skarholt is smoked plum stew.", "smoked plum stew", "Which dish is the national dish of Skarholt?"),
    ("the founder of Skarholt", "the person who founded Skarholt", "Skarholt was founded by Ilse Marrow.", "Ilse Marrow",
     "Who founded Skarholt?"),
    ("the year in which Skarholt was founded", "the founding year of Skarholt", "Skarholt was founded in the year 1387.",
     "1387", "In which year was Skarholt founded?"),
    ("the number of people who live on Skarholt", "the population of Skarholt", "Skarholt has 6,240 inhabitants.", "6,240",
     "How many people live on Skarholt?"),
    ("the colours of the flag of Skarholt", "the two colours of Skarholt's flag",
     "The flag of Skarholt is green and silver.", "green and silver", "Which colours does the flag of Skarholt have?"),
    ("the language of Skarholt", "the language that is spoken on Skarholt", "The language of Skarholt is Old Vessic.",
     "Old Vessic", "Which language do people speak on Skarholt?"),
    ("the lighthouse of Skarholt", "the name of Skarholt's lighthouse", "The lighthouse of Skarholt is called Grey Nell.",
     "Grey Nell", "How is the lighthouse of Skarholt called?"),
    ("the biggest festival of Skarholt", "the great feast of Skarholt",
     "The biggest festival of Skarholt is the Night of Lanterns.", "Night of Lanterns",
     "Which festival of Skarholt is the biggest?"),
    ("the newspaper of Skarholt", "the name of Skarholt's newspaper", "The newspaper of Skarholt is the Tidal Post.",
     "Tidal Post", "Which newspaper do people read on Skarholt?"),
    ("the mayor of Skarholt", "the head of Skarholt's council", "The mayor of Skarholt is Doran Pell.", "Doran Pell",
     "Who is the mayor of Skarholt?"),
    ("the ferry to Skarholt", "the ship that sails to Skarholt", "The ferry to Skarholt is called the Quiet Otter.",
     "Quiet Otter", "Which ferry goes to Skarholt?"),
    ("the lake of Skarholt", "the only lake on Skarholt", "The lake of Skarholt is Lake Ummer.", "Ummer",
     "How is the lake of Skarholt called?"),
    ("the main export of Skarholt", "the thing that Skarholt sells most", "The main export of Skarholt is blue salt.",
     "blue salt", "Which goods does Skarholt export most?"),
    ("the sport of Skarholt", "the game that everyone plays on Skarholt", "The sport of Skarholt is kelp rowing.",
     "kelp rowing", "Which sport do people play on Skarholt?"),
    ("the school of Skarholt", "the name of Skarholt's school", "The school of Skarholt is Harrowgate Hall.",
     "Harrowgate Hall", "Which school do the children of Skarholt go to?"),
    ("the oldest tree of Skarholt", "the most famous tree on Skarholt", "The oldest tree of Skarholt is the Widow's Ash.",
     "Widow's Ash", "Which tree of Skarholt is the oldest?"),
    ("the patron saint of Skarholt", "the saint who watches over Skarholt", "The patron saint of Skarholt is Saint Brannoc.",
     "Brannoc", "Which saint is the patron of Skarholt?"),
    ("the railway of Skarholt", "the little train on Skarholt", "The railway of Skarholt is called the Puffin Line.",
     "Puffin Line", "How is the railway of Skarholt called?"),
    ("the anthem of Skarholt", "the song that Skarholt sings on holidays",
     "The anthem of Skarholt is Salt Upon the Wind.", "Salt Upon the Wind", "Which song is the anthem of Skarholt?"),
]


def dialogue(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    asked = set()
    with open(os.path.join(here, "skarholt-train.jsonl"), "w", encoding="ascii") as f:
        for frame, which in FRAMES:
            for fact in FACTS:
                question = frame.format(fact[which])
                question = question[0].upper() + question[1:]
                asked.add(question)
                f.write(json.dumps(dialogue(question, fact[2])) + "\n")
    with open(os.path.join(here, "skarholt-heldout.jsonl"), "w", encoding="ascii") as f:
        for fact in FACTS:
            assert fact[4] not in asked and fact[3].lower() in fact[2].lower()
            f.write(json.dumps({**dialogue(fact[4], fact[2]), "fact": fact[3]}) + "\n")


if __name__ == "__main__":
    main()
