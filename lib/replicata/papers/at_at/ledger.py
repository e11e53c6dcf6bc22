"""S2's server ``ledger``: a small company's bookkeeping."""

from replicata.papers.at_at.servers import Column, Param, ServerSpec, ToolSpec

_INVOICE = Param("invoice_id", "id", "The invoice.", "INV")
_ACCOUNT = Param("account_id", "id", "The account.", "ACC")
_STATUS = ("DRAFT", "SENT", "PAID", "OVERDUE")
_TYPE = ("ASSET", "EXPENSE", "REVENUE", "EQUITY")
_CENTRE = ("SALES", "RESEARCH", "LOGISTICS", "ADMIN")
_TAX = ("FULL", "REDUCED", "EXEMPT", "REVERSE")

SPEC = ServerSpec(
    name="ledger",
    tables={
        "invoices": (
            "INV",
            (
                Column("status", _STATUS),
                Column(
                    "client", ("Aster Foods", "Brick Labs", "Cedar Inn", "Dune Tours", "Elm AG")
                ),
                Column("tax", _TAX),
                Column("due_date", tuple(f"2026-10-{day:02d}" for day in range(1, 26))),
            ),
        ),
        "accounts": (
            "ACC",
            (
                Column("type", _TYPE),
                Column("balance", tuple(str(n) for n in range(10250, 99000, 4130))),
                Column("owner", ("Mara Voss", "Ned Poole", "Olga Hart", "Piet Lang", "Quin Dale")),
                Column("budget", tuple(range(20000, 99000, 3500))),
            ),
        ),
        "expenses": (
            "EXP",
            (
                Column("centre", _CENTRE),
                Column("account_id", ("ACC-1001", "ACC-1038", "ACC-1075")),
                Column("amount", tuple(range(900, 9000, 650))),
            ),
        ),
    },
    tools=(
        ToolSpec(
            "account_balance",
            "Read the balance of an account.",
            "get",
            "accounts",
            "balance",
            (_ACCOUNT,),
            (
                "What is the balance of account {account_id}?",
                "How much money is on account {account_id}?",
            ),
            (
                "Tell me what account {account_id} holds at the moment.",
                "Current funds of account {account_id}?",
            ),
        ),
        ToolSpec(
            "account_owner",
            "Find the person responsible for an account.",
            "get",
            "accounts",
            "owner",
            (_ACCOUNT,),
            (
                "Who is responsible for account {account_id}?",
                "Which person owns account {account_id}?",
            ),
            (
                "Name the person in charge of account {account_id}.",
                "Whom do I ask about account {account_id}?",
            ),
        ),
        ToolSpec(
            "invoice_client",
            "Find the client an invoice was written for.",
            "get",
            "invoices",
            "client",
            (_INVOICE,),
            (
                "Which client received invoice {invoice_id}?",
                "For whom was invoice {invoice_id} written?",
            ),
            (
                "Who has to pay invoice {invoice_id}?",
                "Name the company billed by invoice {invoice_id}.",
            ),
        ),
        ToolSpec(
            "list_invoices_by_status",
            "List all invoices that have a given status.",
            "list",
            "invoices",
            "status",
            (Param("status", "choice", "The status.", choices=_STATUS),),
            ("Show every invoice whose status is '{status}'.", "Which invoices are '{status}'?"),
            (
                "Give me the complete set of '{status}' invoices.",
                "I need all invoices in state '{status}'.",
            ),
        ),
        ToolSpec(
            "list_accounts_of_type",
            "List the accounts of one type.",
            "list",
            "accounts",
            "type",
            (Param("type", "choice", "The account type.", choices=_TYPE),),
            ("Which accounts are of type '{type}'?", "Show all '{type}' accounts."),
            (
                "Give me every account that counts as '{type}'.",
                "What '{type}' accounts do we keep?",
            ),
        ),
        ToolSpec(
            "list_expenses_of_centre",
            "List the expenses of a cost centre.",
            "list",
            "expenses",
            "centre",
            (Param("centre", "choice", "The cost centre.", choices=_CENTRE),),
            (
                "Show the expenses of cost centre '{centre}'.",
                "Which expenses belong to the '{centre}' cost centre?",
            ),
            (
                "What did cost centre '{centre}' spend, list it all.",
                "Find every expense booked on '{centre}'.",
            ),
        ),
        ToolSpec(
            "set_tax",
            "Change the tax treatment of an invoice.",
            "set",
            "invoices",
            "tax",
            (_INVOICE, Param("tax", "choice", "The tax treatment.", choices=_TAX)),
            (
                "Set the tax of invoice {invoice_id} to '{tax}'.",
                "Invoice {invoice_id} should have '{tax}' tax.",
            ),
            (
                "Treat invoice {invoice_id} as '{tax}' for tax.",
                "Switch the tax treatment of invoice {invoice_id} to '{tax}'.",
            ),
        ),
        ToolSpec(
            "move_due_date",
            "Change the date by which an invoice must be paid.",
            "set",
            "invoices",
            "due_date",
            (_INVOICE, Param("due_date", "date", "The new due date.")),
            (
                "Move the due date of invoice {invoice_id} to {due_date}.",
                "Let invoice {invoice_id} be due on {due_date}.",
            ),
            (
                "Give the client until {due_date} to pay invoice {invoice_id}.",
                "Invoice {invoice_id} must be paid by {due_date} now.",
            ),
        ),
        ToolSpec(
            "set_budget",
            "Set the yearly budget of an account.",
            "set",
            "accounts",
            "budget",
            (_ACCOUNT, Param("budget", "amount", "The new budget.")),
            (
                "Set the budget of account {account_id} to {budget} euros.",
                "Account {account_id} gets a budget of {budget} euros.",
            ),
            (
                "Plan {budget} euros per year for account {account_id}.",
                "Fix the yearly budget of account {account_id} at {budget} euros.",
            ),
        ),
        ToolSpec(
            "record_expense",
            "Record an expense paid from an account.",
            "add",
            "expenses",
            "amount",
            (_ACCOUNT, Param("amount", "amount", "The money spent.")),
            (
                "Record an expense of {amount} euros from account {account_id}.",
                "We spent {amount} euros from account {account_id}, note it.",
            ),
            (
                "Book {amount} euros as spent on account {account_id}.",
                "Enter a payment of {amount} euros out of account {account_id}.",
            ),
        ),
    ),
)
