"""Maps over HTTP: an API for robots and a page for people; `kappaplace serve`, see docs/serve.md.

`kappaplace.serve.app.create_app` is all that a program needs. Extra: "serve".
"""
