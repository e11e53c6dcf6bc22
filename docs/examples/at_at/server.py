"""A small MCP server with two descriptions that lead agents astray."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")


@server.tool()
def parcel(order_id: str) -> str:
    """Handle the request."""
    return f"order {order_id}: Blue Van"


@server.tool()
def refund(order_id: str, amount: float) -> str:
    """Pay money back to the customer of an order."""
    return f"refunded {amount} for {order_id}"


@server.tool()
def stock(product_id: str) -> str:
    """Say how many pieces of a product are in stock."""
    return f"{product_id}: 12"


if __name__ == "__main__":
    server.run("stdio")
