"""The commands of the app for manage.py."""
