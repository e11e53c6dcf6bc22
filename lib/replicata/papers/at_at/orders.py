"""S2's server ``orders``: a shop's support desk."""

from replicata.papers.at_at.servers import Column, Param, ServerSpec, ToolSpec

_ORDER = Param("order_id", "id", "The order.", "ORD")
_ITEM = Param("product_id", "id", "The product.", "PRD")
_SHIPPING = ("EXPRESS", "STANDARD", "PICKUP", "OVERNIGHT")
_STATUS = ("PENDING", "PACKED", "SHIPPED", "DELIVERED")
_SHELF = ("NORTH", "SOUTH", "EAST", "WEST")
_REASON = ("DAMAGED", "LATE", "UNWANTED", "MISSING")

SPEC = ServerSpec(
    name="orders",
    tables={
        "orders": (
            "ORD",
            (
                Column("status", _STATUS),
                Column("carrier", ("Postal One", "Blue Van", "Quick Bike", "Sea Line", "Hill Air")),
                Column("shipping", _SHIPPING),
                Column("delivery_date", tuple(f"2026-07-{day:02d}" for day in range(3, 26))),
            ),
        ),
        "products": (
            "PRD",
            (
                Column("shelf", _SHELF),
                Column("stock", tuple(str(n) for n in range(13, 90, 7))),
                Column("price", tuple(range(1250, 9000, 375))),
            ),
        ),
        "refunds": (
            "REF",
            (
                Column("reason", _REASON),
                Column("order_id", ("ORD-1001", "ORD-1038", "ORD-1075")),
                Column("amount", tuple(range(500, 4000, 250))),
            ),
        ),
    },
    tools=(
        ToolSpec(
            "track_parcel",
            "Find the carrier that delivers an order's parcel.",
            "get",
            "orders",
            "carrier",
            (_ORDER,),
            (
                "Which carrier has the parcel of order {order_id}?",
                "Who is delivering the parcel for order {order_id}?",
            ),
            (
                "I want to know which company transports the parcel of order {order_id}.",
                "Tell me the courier that is bringing order {order_id}.",
            ),
        ),
        ToolSpec(
            "delivery_day",
            "Look up the day on which an order arrives.",
            "get",
            "orders",
            "delivery_date",
            (_ORDER,),
            ("When will order {order_id} arrive?", "On what day is order {order_id} due?"),
            (
                "What is the arrival day of order {order_id}?",
                "How long until order {order_id} gets here, which day?",
            ),
        ),
        ToolSpec(
            "check_stock",
            "Say how many pieces of a product are in stock.",
            "get",
            "products",
            "stock",
            (_ITEM,),
            (
                "How many pieces of product {product_id} do we have?",
                "Is product {product_id} in stock, and how many?",
            ),
            (
                "What quantity of product {product_id} is available?",
                "Count the units left of product {product_id}.",
            ),
        ),
        ToolSpec(
            "list_orders_by_status",
            "List all orders that have a given status.",
            "list",
            "orders",
            "status",
            (Param("status", "choice", "The status.", choices=_STATUS),),
            (
                "Show me every order whose status is '{status}'.",
                "Which orders are currently '{status}'?",
            ),
            (
                "Give me all orders in state '{status}'.",
                "I need the complete set of orders with status '{status}'.",
            ),
        ),
        ToolSpec(
            "list_products_on_shelf",
            "List the products stored on a shelf of the warehouse.",
            "list",
            "products",
            "shelf",
            (Param("shelf", "choice", "The shelf.", choices=_SHELF),),
            (
                "Which products lie on shelf '{shelf}'?",
                "Show the products stored on the '{shelf}' shelf.",
            ),
            (
                "What is kept on the '{shelf}' shelf of the warehouse?",
                "Name every product placed on shelf '{shelf}'.",
            ),
        ),
        ToolSpec(
            "list_refunds_for_reason",
            "List refunds that were given for a reason.",
            "list",
            "refunds",
            "reason",
            (Param("reason", "choice", "The reason.", choices=_REASON),),
            (
                "Which refunds were given because goods were '{reason}'?",
                "Show all refunds with reason '{reason}'.",
            ),
            (
                "Find every refund caused by '{reason}' goods.",
                "What refunds did we make for the reason '{reason}'?",
            ),
        ),
        ToolSpec(
            "set_shipping",
            "Change the shipping method of an order.",
            "set",
            "orders",
            "shipping",
            (_ORDER, Param("method", "choice", "The shipping method.", choices=_SHIPPING)),
            (
                "Change the shipping of order {order_id} to '{method}'.",
                "Please send order {order_id} by '{method}' shipping.",
            ),
            (
                "Switch order {order_id} over to '{method}' shipping.",
                "Make '{method}' the shipping method for order {order_id}.",
            ),
        ),
        ToolSpec(
            "reschedule_delivery",
            "Move the delivery of an order to another date.",
            "set",
            "orders",
            "delivery_date",
            (_ORDER, Param("new_date", "date", "The new delivery date.")),
            (
                "Move the delivery of order {order_id} to {new_date}.",
                "Reschedule order {order_id} for delivery on {new_date}.",
            ),
            (
                "I am away, so deliver order {order_id} on {new_date} instead.",
                "Postpone the delivery of order {order_id} until {new_date}.",
            ),
        ),
        ToolSpec(
            "set_price",
            "Set the price of a product.",
            "set",
            "products",
            "price",
            (_ITEM, Param("price", "amount", "The new price.")),
            (
                "Set the price of product {product_id} to {price} euros.",
                "Product {product_id} should cost {price} euros.",
            ),
            (
                "Reprice product {product_id} at {price} euros.",
                "Let the price of product {product_id} be {price} euros from now on.",
            ),
        ),
        ToolSpec(
            "issue_refund",
            "Pay money back to a customer for an order.",
            "add",
            "refunds",
            "amount",
            (_ORDER, Param("amount", "amount", "The money to pay back.")),
            (
                "Refund {amount} euros for order {order_id}.",
                "Pay the customer of order {order_id} back {amount} euros.",
            ),
            (
                "Return {amount} euros to the buyer of order {order_id}.",
                "Give {amount} euros back for order {order_id}.",
            ),
        ),
    ),
)
