from sm121.cli import main

main()
