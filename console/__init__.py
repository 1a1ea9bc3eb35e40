"""The HTTP face of swapd: routes, streams and the guarded server. It calls only `swapd.api.Service`."""
