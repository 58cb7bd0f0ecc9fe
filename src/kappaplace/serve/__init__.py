"""HTTP service for maps: an API for programs and a web page for people (`kappaplace serve`, docs/serve.md).

`kappaplace.serve.app.create_app` creates the application. Extra: ``serve``.
"""
