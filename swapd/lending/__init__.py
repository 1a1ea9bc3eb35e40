"""When a device is lent and how it is given back: verdict, take-back, quiet hours, the give-back itself."""
