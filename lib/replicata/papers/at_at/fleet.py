"""S2's server ``fleet``: booking and upkeep of a company's vehicles."""

from replicata.papers.at_at.servers import Column, Param, ServerSpec, ToolSpec

_CAR = Param("vehicle_id", "id", "The vehicle.", "VEH")
_BOOKING = Param("booking_id", "id", "The booking.", "BKG")
_FUEL = ("DIESEL", "PETROL", "ELECTRIC", "HYBRID")
_DEPOT = ("HARBOUR", "AIRPORT", "CENTRE", "STADIUM")
_CLASS = ("COMPACT", "ESTATE", "VAN", "TRUCK")
_STATE = ("OPEN", "CONFIRMED", "CANCELLED", "RETURNED")

SPEC = ServerSpec(
    name="fleet",
    tables={
        "vehicles": (
            "VEH",
            (
                Column("fuel", _FUEL),
                Column("mileage", tuple(str(n) for n in range(12040, 90000, 3170))),
                Column("depot", _DEPOT),
                Column("inspection_date", tuple(f"2026-09-{day:02d}" for day in range(2, 27))),
            ),
        ),
        "bookings": (
            "BKG",
            (
                Column("state", _STATE),
                Column("driver", ("Amara Bell", "Tomas Reid", "Ines Moss", "Karl Frey", "Lea Orr")),
                Column("class", _CLASS),
                Column("return_date", tuple(f"2026-08-{day:02d}" for day in range(4, 27))),
            ),
        ),
        "fines": (
            "FIN",
            (
                Column("kind", ("SPEEDING", "PARKING", "TOLL", "LIGHTS")),
                Column("vehicle_id", ("VEH-1001", "VEH-1038", "VEH-1075")),
                Column("amount", tuple(range(1500, 9000, 450))),
            ),
        ),
    },
    tools=(
        ToolSpec(
            "read_mileage",
            "Read how many kilometres a vehicle has been driven.",
            "get",
            "vehicles",
            "mileage",
            (_CAR,),
            (
                "How many kilometres has vehicle {vehicle_id} been driven?",
                "What is the mileage of vehicle {vehicle_id}?",
            ),
            (
                "Tell me the odometer reading of vehicle {vehicle_id}.",
                "How far has vehicle {vehicle_id} travelled so far?",
            ),
        ),
        ToolSpec(
            "next_inspection",
            "Look up when a vehicle's technical inspection is due.",
            "get",
            "vehicles",
            "inspection_date",
            (_CAR,),
            (
                "When is the inspection of vehicle {vehicle_id} due?",
                "On which day must vehicle {vehicle_id} be inspected?",
            ),
            (
                "Date of the next technical check of vehicle {vehicle_id}?",
                "By when does vehicle {vehicle_id} need its inspection?",
            ),
        ),
        ToolSpec(
            "who_drives",
            "Find the driver of a booking.",
            "get",
            "bookings",
            "driver",
            (_BOOKING,),
            (
                "Who is the driver of booking {booking_id}?",
                "Which person drives under booking {booking_id}?",
            ),
            (
                "Name the driver for booking {booking_id}.",
                "Whose booking is {booking_id}, who will drive?",
            ),
        ),
        ToolSpec(
            "list_vehicles_at_depot",
            "List the vehicles that stand at a depot.",
            "list",
            "vehicles",
            "depot",
            (Param("depot", "choice", "The depot.", choices=_DEPOT),),
            (
                "Which vehicles are at the '{depot}' depot?",
                "Show all vehicles standing at depot '{depot}'.",
            ),
            (
                "Give me every vehicle parked at the '{depot}' depot.",
                "What vehicles can I find at depot '{depot}'?",
            ),
        ),
        ToolSpec(
            "list_bookings_in_state",
            "List the bookings that are in a given state.",
            "list",
            "bookings",
            "state",
            (Param("state", "choice", "The state.", choices=_STATE),),
            ("Show every booking in state '{state}'.", "Which bookings are '{state}'?"),
            (
                "I need all bookings that are '{state}' right now.",
                "Give the full set of '{state}' bookings.",
            ),
        ),
        ToolSpec(
            "list_fines_of_kind",
            "List traffic fines of one kind.",
            "list",
            "fines",
            "kind",
            (
                Param(
                    "kind", "choice", "The kind.", choices=("SPEEDING", "PARKING", "TOLL", "LIGHTS")
                ),
            ),
            ("Which fines did we get for '{kind}'?", "Show all '{kind}' fines."),
            ("Find every traffic fine of kind '{kind}'.", "What '{kind}' penalties are there?"),
        ),
        ToolSpec(
            "change_vehicle_class",
            "Change the class of vehicle of a booking.",
            "set",
            "bookings",
            "class",
            (_BOOKING, Param("vehicle_class", "choice", "The vehicle class.", choices=_CLASS)),
            (
                "Change booking {booking_id} to a '{vehicle_class}'.",
                "Give booking {booking_id} a vehicle of class '{vehicle_class}'.",
            ),
            (
                "Switch booking {booking_id} to class '{vehicle_class}'.",
                "We need a '{vehicle_class}' for booking {booking_id} instead.",
            ),
        ),
        ToolSpec(
            "extend_booking",
            "Move the return date of a booking.",
            "set",
            "bookings",
            "return_date",
            (_BOOKING, Param("return_date", "date", "The new return date.")),
            (
                "Extend booking {booking_id} until {return_date}.",
                "Let booking {booking_id} end on {return_date}.",
            ),
            (
                "We will bring back booking {booking_id} on {return_date}, please change that.",
                "Prolong booking {booking_id} to {return_date}.",
            ),
        ),
        ToolSpec(
            "move_vehicle",
            "Send a vehicle to another depot.",
            "set",
            "vehicles",
            "depot",
            (_CAR, Param("depot", "choice", "The new depot.", choices=_DEPOT)),
            (
                "Send vehicle {vehicle_id} to the '{depot}' depot.",
                "Move vehicle {vehicle_id} over to depot '{depot}'.",
            ),
            (
                "Transfer vehicle {vehicle_id} to '{depot}'.",
                "Vehicle {vehicle_id} should go to the '{depot}' depot.",
            ),
        ),
        ToolSpec(
            "record_fine",
            "Record a traffic fine against a vehicle.",
            "add",
            "fines",
            "amount",
            (_CAR, Param("amount", "amount", "The amount of the fine.")),
            (
                "Record a fine of {amount} euros for vehicle {vehicle_id}.",
                "Vehicle {vehicle_id} got a fine of {amount} euros, note it.",
            ),
            (
                "Book a penalty of {amount} euros on vehicle {vehicle_id}.",
                "Enter {amount} euros as a traffic fine against vehicle {vehicle_id}.",
            ),
        ),
    ),
)
