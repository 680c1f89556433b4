#!/usr/bin/env python3
"""Writes bookings.csv, the same on every machine: python3 examples/make-bookings.py > examples/bookings.csv

2,000 bookings of 80 bus trips by 480 customers. With 50 seats a trip and 250.00 a customer, as the demo has them,
popular trips sell out, some customers run out of money, and 24 orders come a second time (a client that did not hear
its answer and sent the order again).
"""

state = 20_240_229


def draw(below):
    """A number from 0 to below - 1: Knuth's MMIX generator, the upper bits of it."""
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return (state >> 33) % below


towns = ["Berlin", "Dresden", "Erfurt", "Halle", "Jena", "Leipzig", "Potsdam", "Rostock", "Weimar", "Zwickau"]
trips = []
while len(trips) < 80:
    origin, destination = towns[draw(10)], towns[draw(10)]
    trip = f"{origin}-{destination}-{6 + draw(16):02}:{draw(4) * 15:02}"
    if origin != destination and trip not in [name for name, _ in trips]:
        trips.append((trip, 900 + draw(30) * 100))

lines = []
for number in range(1, 1977):
    # Every sixth booking is for one of the ten popular trips.
    trip, price = trips[draw(10) if draw(6) == 0 else draw(80)]
    customer = f"customer-{min(draw(480), draw(480)) + 1:03}"
    seats = [1, 1, 1, 1, 2, 2, 2, 3, 4, 1][draw(10)]
    lines.append((f"order-{number:04}", customer, trip, seats, seats * price))

for repeat in range(24):
    first = draw(len(lines) - 60)
    # Soon after the first, some of them while that is under way.
    lines.insert(first + 1 + draw(50), lines[first])

print("order_id,customer,trip,seats,price_cents")
for line in lines:
    print(",".join(str(field) for field in line))
