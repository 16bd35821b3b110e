"""The only package of the worker that knows Dynamo."""
