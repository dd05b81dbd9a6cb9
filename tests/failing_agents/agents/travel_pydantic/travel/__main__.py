from travel.planner import main

main()
