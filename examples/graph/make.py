"""Makes the tables of this folder: readers, the books that they share, and their favourite genre."""

import random

GENRES = ["crime", "poetry", "travel"]
FIRST = ["ada", "ben", "cleo", "dan", "eva", "finn", "gil", "hana", "ivo", "jana"]
LAST = ["abel", "berg", "cole", "dorn", "egan", "frost", "grant", "hale", "ingram", "jones", "klein", "lund"]

random.seed(7)
people = [f"{first} {last}" for last in LAST for first in FIRST]
genre = {person: random.choice(GENRES) for person in people}

edges = set()
for person in people:
    # Three of four friends like the same genre.
    for _ in range(3):
        alike = random.random() < 0.75
        others = [other for other in people if other != person and (genre[other] == genre[person]) == alike]
        edges.add(tuple(sorted((person, random.choice(others)))))

with open("edges.csv", "w") as file:
    file.write("reader,friend\n" + "".join(f"{a},{b}\n" for a, b in sorted(edges)))
with open("features.csv", "w") as file:
    file.write("id,age,books_per_year,library,bookshop\n")
    for person in people:
        shift = GENRES.index(genre[person]) - 1
        features = [random.gauss(0.5 * shift, 1), random.gauss(-0.5 * shift, 1), random.gauss(0, 1), random.gauss(0, 1)]
        file.write(person + "".join(f",{value:.2f}" for value in features) + "\n")
with open("labels.csv", "w") as file:
    # One reader in ten does not tell.
    file.write("id,label\n" + "".join(f"{p},{genre[p] if random.random() < 0.9 else 'NA'}\n" for p in people))
