"""The only package of the router that knows Dynamo."""
